"""What clients do, and what goes wrong meanwhile."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.core.slo import Limits
from virtual.engine import Demand, VirtualEngine
from virtual.machines import CORE, H100, Machine

TTFT_S: Final = 2.0
TTFT_FACTOR: Final = 4.0
TPOT_S: Final = 0.05
SHORT: Final = "short"
LONG: Final = "long"
ANSWER: Final = "answer"
ODD: Final = "odd"
TINY: Final = "tiny"
FILL: Final = "fill"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Ordinary traffic of a machine: lengths are uniform, one request in twenty is long."""

    machine: Machine
    short_tokens: tuple[int, int]
    long_tokens: tuple[int, int]
    output_tokens: int
    ttft_s: float
    tpot_s: float

    def demands(self, seed: int, rate: float, until_s: float) -> list[Demand]:
        """Requests that come independently of one another, so many a second on average."""
        rng = random.Random(seed)
        found = []
        for at_s in poisson(rng, rate, until_s):
            is_long = rng.random() < 0.05
            tokens = rng.randint(*(self.long_tokens if is_long else self.short_tokens))
            found.append(
                demand(
                    at_s,
                    LONG if is_long else SHORT,
                    tokens,
                    self.output_tokens,
                    machine=self.machine,
                    ttft_s=self.ttft_s,
                    tpot_s=self.tpot_s,
                )
            )
        return found


GPU_TRAFFIC: Final = Traffic(H100, (500, 2_000), (60_000, 120_000), 200, TTFT_S, TPOT_S)
CORE_TRAFFIC: Final = Traffic(CORE, (30, 120), (1_200, 2_800), 24, 1.0, 0.15)


def demand(
    at_s: float,
    kind: str,
    prompt_tokens: int,
    output_tokens: int,
    *,
    machine: Machine = H100,
    ttft_s: float = TTFT_S,
    tpot_s: float = TPOT_S,
    **more: Any,
) -> Demand:
    """A request with TTFT limit max(`ttft_s`, 4 times alone) and TPOT limit `tpot_s`."""
    ttft_s = max(ttft_s, TTFT_FACTOR * machine.alone_s(prompt_tokens))
    return Demand(
        at_s=at_s,
        kind=kind,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        limits=Limits(ttft_s, tpot_s),
        **more,
    )


def poisson(rng: random.Random, rate: float, until_s: float) -> list[float]:
    """Moments at which clients send, independently of one another."""
    moments, now_s = [], rng.expovariate(rate)
    while now_s < until_s:
        moments.append(now_s)
        now_s += rng.expovariate(rate)
    return moments


def answers(prompt_tokens: int) -> list[Demand]:
    """16 answers of 1,000 tokens while prompts of 20,000 tokens wait all the time."""
    found = [demand(0.0, ANSWER, prompt_tokens, 1_000, ttft_s=60.0) for _ in range(16)]
    return found + [demand(1.0, FILL, 20_000, 1) for _ in range(60)]


def with_odd_one(
    demands: Sequence[Demand], until_s: float, output_tokens: int, **asked: Any
) -> list[Demand]:
    """The same with a request each 20 s whose client asks for something odd."""
    moments = range(5, int(until_s), 20)
    return [*demands, *(demand(at, ODD, 500, output_tokens, **asked) for at in moments)]


def flood(seed: int, rate: float, until_s: float) -> list[Demand]:
    """Prompts of 256 tokens; at 20 s one of 30,000 and one of 2,000 come, both less urgent."""
    rng = random.Random(seed)
    tiny = [demand(at_s, TINY, 256, 1) for at_s in poisson(rng, rate, until_s)]
    return [
        *tiny,
        demand(20.0, LONG, 30_000, 20, priority=1),
        demand(20.0, SHORT, 2_000, 20, priority=1),
    ]


def impossible(tpot_s: float) -> list[Demand]:
    """40 answers, a prompt of 100,000 tokens and a short one after it."""
    found = [demand(0.2 * i, ANSWER, 500, 400, tpot_s=tpot_s) for i in range(40)]
    return [*found, demand(2.0, LONG, 100_000, 20), demand(4.0, SHORT, 500, 20)]


class Hiccup:
    """Once the last answer has 400 tokens, something holds the engine up."""

    def __init__(self, *, pause_s: float = 0.0, preempt_all: bool = False) -> None:
        self._pause_s = pause_s
        self._preempt_all = preempt_all
        self._done = False

    def __call__(self, engine: VirtualEngine) -> float:
        if self._done or engine.tokens_of(f"{ANSWER}-15") < 400:
            return 0.0
        self._done = True
        if self._preempt_all:
            engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        return self._pause_s
