"""What an emulated model writes: whole words, the same ones for the same prompt.

Which token stands at a position depends on a seed and the position alone. Greedy answers have the
prompt for a seed, so they are the same however steps were cut, scheduled, preempted or repeated.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

_WORD: Final = re.compile(r"[Ġ▁ ][a-z]{2,}")
"""A token that begins a word, as vocabularies write it: detokenised at once, in ASCII."""
_MASK: Final = (1 << 64) - 1


class Writing(NamedTuple):
    """How one request's answer is written.

    seed: of its choices. prompt_tokens: where it begins. ends_at: the position of its end token;
    None: its length is asked for. end_token: None where it has none. allowed: the tokens that may
    be used; empty: any. logprobs: how many alternatives are asked for; None: not at all.
    """

    seed: int
    prompt_tokens: int
    ends_at: int | None = None
    end_token: int | None = None
    allowed: tuple[int, ...] = ()
    logprobs: int | None = None

    def choice(self, position: int) -> int:
        """A number that stands for the choice at a position, evenly spread over 64 bits."""
        return hash((self.seed, position)) & _MASK

    def token(self, position: int, words: Sequence[int]) -> int:
        """The token at a position of prompt and answer."""
        if self.ends_at is not None and position >= self.ends_at and self.end_token is not None:
            return self.end_token
        among = self.allowed or words
        return among[self.choice(position) % len(among)]


def writing(
    request_id: str,
    prompt: Sequence[int],
    sampling: Any,
    *,
    context_tokens: int,
    answer_tokens: int,
) -> Writing:
    """How a request's answer is written.

    sampling: vLLM's SamplingParams. context_tokens: of the engine: a client that sets no length
    gets what is left of it. answer_tokens: how long such an answer is.
    """
    end = None if sampling.ignore_eos else sampling.eos_token_id
    ends_at = None
    if end is not None and len(prompt) + (sampling.max_tokens or 0) >= context_tokens:
        ends_at = len(prompt) + max(answer_tokens, sampling.min_tokens)
    return Writing(
        seed=_seed(request_id, prompt, sampling),
        prompt_tokens=len(prompt),
        ends_at=ends_at,
        end_token=end,
        allowed=tuple(sampling.allowed_token_ids or ()),
        logprobs=sampling.num_logprobs,
    )


def _seed(request_id: str, prompt: Sequence[int], sampling: Any) -> int:
    text = hash(tuple(prompt))
    if not sampling.temperature:
        return text
    if sampling.seed is not None:
        return hash((text, sampling.seed))
    return hash((text, int.from_bytes(request_id.encode(), "little")))


def words(vocabulary: Mapping[str, int], most: int, forbidden: Sequence[int] = ()) -> list[int]:
    """The tokens that answers are made of, ascending.

    vocabulary: a tokenizer's tokens and their ids; empty where there is none. most: how many ids
    the model knows. forbidden: ids that mean something else.
    """
    known = {
        number: token
        for token, number in vocabulary.items()
        if number < most and number not in forbidden
    }
    return (
        sorted(number for number, token in known.items() if _WORD.fullmatch(token))
        or sorted(known)
        or [number for number in range(most) if number not in forbidden]
    )
