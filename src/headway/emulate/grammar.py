"""Tokens of an answer that must follow a grammar: any that it allows, so that it comes to an end.

A grammar usually allows strings and lists of any length. What ends something is therefore taken a
quarter of the time, and whenever it is allowed once an answer is `LONG` tokens long.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from headway.emulate.answers import Writing

LONG: Final = 32
_OFTEN: Final = 4
_ENDINGS: Final = ('"', "}", "]")
"""In the order in which they are preferred: within a string the others end nothing."""
_BLANK: Final = re.compile(r"(?:[Ġ▁Ċĉč\s]|<0x0[9AD]>)*")
"""How vocabularies write what JSON allows anywhere and any number of times."""


class Grammar:
    """Chooses tokens under vLLM's bit masks."""

    def __init__(self, words: Sequence[int], vocabulary: Mapping[str, int], size: int) -> None:
        """vocabulary: tokens and their ids. size: of the model's."""
        known = {token: number for token, number in vocabulary.items() if number < size}
        self._words: Any = np.zeros(size, dtype=bool)
        self._words[list(words)] = True
        self._blank: Any = np.zeros(size, dtype=bool)
        self._blank[[i for token, i in known.items() if _BLANK.fullmatch(token)]] = True
        self._endings = [known[ending] for ending in _ENDINGS if ending in known]

    def token(self, writing: Writing, position: int, mask: Any) -> int:
        """The token at a position. mask: bits of 32-bit integers, one for each allowed token."""
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(self._words)]
        allowed = bits.astype(bool)
        choice = writing.choice(position)
        if writing.end_token is not None and allowed[writing.end_token]:
            return writing.end_token
        if choice % _OFTEN == 0 or position - writing.prompt_tokens >= LONG:
            for ending in self._endings:
                if allowed[ending]:
                    return ending
        for among in (allowed & self._words, allowed & ~self._blank, allowed):
            found = np.flatnonzero(among)
            if len(found):
                return int(found[choice % len(found)])
        return 0
