"""What a policy may say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """`tokens` of the prompt `id` are computed in this step; it has `left` after it."""

    id: str
    tokens: int
    left: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one engine step computes of its prompts.

    chunks: prompts mid-prefill, in the order in which they were served. Those
        not named are paused: they keep their KV.
    admitted: waiting prompts that start, in order. Only the last may be cut, beside
        those longer than `Step.chunk_tokens`.
    tokens: prefill tokens in all.
    limit_s: how long the step may take, or None where only tokens count.
    reason: what decided the size of the step.
    held_long: a long prompt stays waiting because `max_long_partial_prefills` is reached.
    capacity_bound: tokens, seats or KV blocks of the engine are used up, or prompts wait that
        are late. Otherwise only the policy's own limits keep waiting what waits.
    nothing_to_spare: with this plan the caps are reached; no further prompt, or no
        further long one, may be left unfinished.
    """

    chunks: tuple[Chunk, ...] = ()
    admitted: tuple[Chunk, ...] = ()
    tokens: int = 0
    limit_s: float | None = None
    reason: str = "fixed"
    held_long: bool = False
    capacity_bound: bool = False
    nothing_to_spare: bool = False
