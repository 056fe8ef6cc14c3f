"""What a router has in flight on one engine, and how fast that engine has been seen to prefill.

The count is exact: a request is claimed before it is sent and given back when it ends, whatever
ends it. So every figure is a sum over live claims, and all are 0 when none is left.
"""

from dataclasses import dataclass
from typing import Final

RATE_MEMORY: Final = 0.9
"""What is kept of an engine's measured prefill when another measurement joins it."""


@dataclass(slots=True)
class Work:
    """Sums over live claims.

    prefill_tokens: of prompts that aren't computed yet. decode_tokens: context of the decodes.
    kv_tokens: KV of all of them.
    """

    requests: int = 0
    prefill_tokens: int = 0
    decodes: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0


class Load:
    """One engine's work, and its speed.

    prefill_tokens_per_s: learned; 0 while unknown.
    """

    __slots__ = ("_measured_s", "_measured_tokens", "claims", "prefill_tokens_per_s", "work")

    def __init__(self) -> None:
        self.work = Work()
        self.claims: set[Claim] = set()
        self.prefill_tokens_per_s = 0.0
        self._measured_tokens = 0.0
        self._measured_s = 0.0

    def learn_rate(self, tokens: int, seconds: float) -> None:
        """`tokens` of prefill, those before it included, took `seconds` until a first token.

        A ratio of sums: short prompts, of which most of the time is overhead, weigh little.
        """
        if tokens <= 0 or seconds <= 0:
            return
        self._measured_tokens = RATE_MEMORY * self._measured_tokens + tokens
        self._measured_s = RATE_MEMORY * self._measured_s + seconds
        self.prefill_tokens_per_s = self._measured_tokens / self._measured_s

    def patience_s(self, *, idle_s: float, first_byte_s: float, s_per_1k_tokens: float) -> float:
        """How long the engine may be silent over the request that may take longest; 0 without one.

        idle_s: between bytes of an answer. first_byte_s: until its first, and s_per_1k_tokens more
        for a thousand tokens of prompt. However a request is answered, the engine is given as long
        as a stream's next byte may take.
        """
        first_s = max((claim.waiting_tokens for claim in self.claims), default=-1)
        longest_s = first_byte_s + s_per_1k_tokens * first_s / 1000 if first_s >= 0 else 0.0
        if any(claim.answering for claim in self.claims):
            longest_s = max(longest_s, idle_s)
        return longest_s


class Claim:
    """One request's share of an engine's work: prefilling, then decoding, then nothing.

    late: the engine is silent already, so nothing can be told from how it answers this one.
    ahead_tokens: prefill that was to be done when it came, its own included; 0 if it has none.
    `release` may be called any number of times; only the first counts.
    """

    __slots__ = (
        "_decode_tokens",
        "_kv_tokens",
        "_late",
        "_load",
        "_prefill_tokens",
        "ahead_tokens",
    )

    def __init__(self, load: Load, prefill_tokens: int, kv_tokens: int, *, late: bool) -> None:
        self._load: Load | None = load
        self._prefill_tokens = prefill_tokens
        self._decode_tokens = 0
        self._kv_tokens = kv_tokens
        self._late = late
        work = load.work
        work.requests += 1
        work.prefill_tokens += prefill_tokens
        work.kv_tokens += kv_tokens
        self.ahead_tokens = work.prefill_tokens if prefill_tokens else 0
        load.claims.add(self)

    @property
    def waiting_tokens(self) -> int:
        """While its first byte is due, the tokens of its prompt, about; else -1.

        Its KV is as long as its prompt, and a little longer.
        """
        return -1 if self._late or self._decode_tokens else self._kv_tokens

    @property
    def answering(self) -> bool:
        """Bytes of its answer are due."""
        return bool(self._decode_tokens) and not self._late

    def prefilled(self, context_tokens: int) -> None:
        """Its prompt is computed; from now on it decodes."""
        load = self._load
        if load is None or self._decode_tokens:
            return
        work = load.work
        work.prefill_tokens -= self._prefill_tokens
        self._prefill_tokens = 0
        self._decode_tokens = max(1, context_tokens)
        work.decodes += 1
        work.decode_tokens += self._decode_tokens

    def release(self) -> None:
        """The request has left the engine."""
        load, self._load = self._load, None
        if load is None:
            return
        load.claims.discard(self)
        work = load.work
        work.requests -= 1
        work.prefill_tokens -= self._prefill_tokens
        work.kv_tokens -= self._kv_tokens
        if self._decode_tokens:
            work.decodes -= 1
            work.decode_tokens -= self._decode_tokens
