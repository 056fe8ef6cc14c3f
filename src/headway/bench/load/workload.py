"""Workloads: which request is sent when, and how long it is.

A schedule is plain data. The same schedule played against two engines
gives both the same arrivals; everything random comes from a seed.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

SHORT: Final = "short"
LONG: Final = "long"
RUNNING: Final = "running"

PROMPT_TOKEN_IDS: Final = range(1_000, 30_000)
"""Ids to draw prompts from: ordinary tokens of any vocabulary of 30,000 or more."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of an open-loop schedule.

    at_s: intended send time after the start of the schedule.
    length_class: the class it is reported in.
    prompt_tokens, output_tokens: exact lengths, at least 1.
    prefix_blocks: ids of the blocks its prompt begins with; equal ids stand
        for equal tokens. Empty for a prompt that shares nothing.
    block_tokens: length of each of these blocks.
    """

    at_s: float
    length_class: str
    prompt_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] = ()
    block_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Requests of similar length: lengths are uniform within the bounds, both included.

    share: the part of all requests that belongs to it, 0 to 1.
    """

    name: str
    share: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Requests of which `count` are always running: one ends, the next is sent.

    The first ones start `stagger_s` apart.
    """

    count: int
    length_class: str
    prompt_tokens: int
    output_tokens: int
    stagger_s: float = 0.25


@dataclass(frozen=True, slots=True)
class Workload:
    """An open-loop schedule with an optional closed loop beside it.

    arrivals: in order of time.
    duration_s: how long requests are offered; no arrival is later.
    """

    arrivals: tuple[Arrival, ...]
    duration_s: float
    running: ClosedLoop | None = None


MIXED: Final = (
    LengthClass(SHORT, 0.92, (40, 80), (20, 28)),
    LengthClass(LONG, 0.08, (1_200, 2_800), (20, 28)),
)
"""Short questions with 8% long prompts among them."""


def poisson(
    rate_per_s: float, duration_s: float, classes: Sequence[LengthClass], seed: int
) -> Workload:
    """Open-loop Poisson arrivals of a mix of length classes.

    Classes are dealt in shuffled rounds, so that a schedule of n requests
    has its share of each class to within one round; a mix with 8% long prompts
    has one in every 12 or 13 requests rather than none in an unlucky minute.
    Arrival times are plain Poisson.
    """
    if not (rate_per_s > 0 and duration_s > 0):
        raise ValueError(f"rate {rate_per_s} and duration {duration_s} must be above 0")
    rng = random.Random(f"poisson-{seed}")
    names = _dealt(classes, rng)
    arrivals: list[Arrival] = []
    at_s = rng.expovariate(rate_per_s)
    while at_s < duration_s:
        arrivals.append(_draw(next(names), at_s, rng))
        at_s += rng.expovariate(rate_per_s)
    return Workload(tuple(arrivals), duration_s)


def burst(counts: Sequence[tuple[LengthClass, int]], seed: int) -> Workload:
    """So many requests of each class, all at once, in shuffled order: a saturated engine."""
    rng = random.Random(f"burst-{seed}")
    dealt = [item for item, count in counts for _ in range(count)]
    rng.shuffle(dealt)
    return Workload(tuple(_draw(item, 0.0, rng) for item in dealt), 1.0)


def lone(prompt_tokens: int, output_tokens: int, length_class: str) -> Workload:
    """One request on an idle engine."""
    return Workload((Arrival(0.0, length_class, prompt_tokens, output_tokens),), 1.0)


def contention(
    *,
    short: LengthClass,
    short_rate_per_s: float,
    long_prompts_at_s: Sequence[float],
    long_tokens: tuple[int, int],
    running: ClosedLoop,
    duration_s: float,
    seed: int,
) -> Workload:
    """Running decodes, short Poisson arrivals throughout, and long prompts at given times.

    long_tokens: prompt and output length of each long prompt.
    """
    shorts = poisson(short_rate_per_s, duration_s, [replace(short, share=1.0)], seed)
    longs = [Arrival(at_s, LONG, *long_tokens) for at_s in long_prompts_at_s]
    merged = sorted([*shorts.arrivals, *longs], key=lambda arrival: arrival.at_s)
    return Workload(tuple(merged), duration_s, running)


def prompts(arrivals: Sequence[Arrival], seed: str) -> Iterator[list[int]]:
    """Token ids of each prompt, in order.

    Prompts share no prefix with each other or with prompts of another
    seed, so a prefix cache never hits; but equal `prefix_blocks` give equal tokens.
    """
    unique = random.Random(f"prompt-{seed}")
    for arrival in arrivals:
        ids: list[int] = []
        for block in arrival.prefix_blocks:
            shared = random.Random(f"block-{seed}-{block}")
            ids += shared.choices(PROMPT_TOKEN_IDS, k=arrival.block_tokens)
        del ids[arrival.prompt_tokens :]
        yield ids + unique.choices(PROMPT_TOKEN_IDS, k=arrival.prompt_tokens - len(ids))


def _draw(item: LengthClass, at_s: float, rng: random.Random) -> Arrival:
    return Arrival(
        at_s, item.name, rng.randint(*item.prompt_tokens), rng.randint(*item.output_tokens)
    )


def _dealt(classes: Sequence[LengthClass], rng: random.Random) -> Iterator[LengthClass]:
    """Classes in endless shuffled rounds of 25, each class its share of every round.

    What doesn't divide evenly is carried to the next round.
    """
    total = sum(item.share for item in classes)
    if not classes or not 0.999 < total < 1.001:
        raise ValueError(f"shares of the length classes add up to {total}; make them 1")
    owed = [0.0] * len(classes)
    while True:
        dealt: list[LengthClass] = []
        for index, item in enumerate(classes):
            owed[index] += 25 * item.share
            whole = int(owed[index] + 1e-9)
            owed[index] -= whole
            dealt += [item] * whole
        rng.shuffle(dealt)
        yield from dealt
