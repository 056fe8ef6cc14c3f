"""Tokens of an answer that must follow a grammar: any that it allows, so that it comes to an end.

A grammar usually allows strings and lists of any length. What ends something is therefore taken a
quarter of the time, and whenever it is allowed once an answer is `LONG` tokens long.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from headway.emulate.answers import Writing

LONG: Final = 32
_OFTEN: Final = 4
_ENDINGS: Final = ("}", "]", '"')
"""In the order in which they are preferred."""


class Grammar:
    """Chooses tokens under vLLM's bit masks."""

    def __init__(self, words: Sequence[int], texts: Sequence[str]) -> None:
        """texts: what each token of the vocabulary is written as."""
        self._words = np.zeros(len(texts), dtype=bool)
        self._words[list(words)] = True
        self._blank = np.array([not text.strip() for text in texts], dtype=bool)
        self._endings = [
            number for ending in _ENDINGS for number, text in enumerate(texts) if text == ending
        ]

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
