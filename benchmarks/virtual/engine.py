"""One engine in virtual time: demands in, outcomes out."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness import Clock, Driver, faults, make_request, make_scheduler

from headway.core.batching.settings import STOCK
from headway.core.slo import Limits, Outcome
from headway.engine import conductor, tracks
from virtual.machines import Device, Machine

DEPTH: Final = 2
"""Steps in flight under asynchronous scheduling, which vLLM uses on GPUs."""
LONGEST_S: Final = 3_600.0
"""A run that isn't over by then is cut; what is unfinished counts as missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One request of a client.

    kind: the class it is reported in.
    limits: what it is judged by.
    asked: what the client itself asks for (`vllm_xargs`), if anything.
    """

    at_s: float
    kind: str
    prompt_tokens: int
    output_tokens: int
    limits: Limits
    priority: int = 0
    asked: dict[str, float] | None = None


@dataclass(slots=True)
class Served:
    """What became of a demand; times in seconds after the run's start."""

    demand: Demand
    token_times_s: list[float] = field(default_factory=list)
    completed: bool = False

    @property
    def outcome(self) -> Outcome:
        """The request as `headway.core.slo` judges it."""
        demand = self.demand
        times = tuple(self.token_times_s)
        return Outcome(demand.kind, demand.at_s, times, self.completed, demand.limits)


@dataclass(slots=True)
class Run:
    """What one engine did with its demands."""

    served: list[Served]
    end_s: float
    steps: int

    def of(self, kind: str) -> list[Served]:
        """The requests of one class."""
        return [each for each in self.served if each.demand.kind == kind]


Mishap = Callable[["VirtualEngine"], float]
"""Called after each step; seconds by which the engine stands still, and whatever else it does."""


class VirtualEngine(Driver):
    """vLLM's scheduler on a machine that isn't there."""

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        policy: str,
        *,
        seed: int,
        clock: Clock,
        **settings: Any,
    ) -> None:
        """policy, settings: headway's; `vllm` is the stock scheduler, without settings."""
        scheduler = make_scheduler(
            folder,
            None if policy == STOCK else policy,
            budget=machine.step_tokens,
            seats=machine.seats,
            blocks=machine.blocks,
            max_model_len=131_072,
            async_scheduling=True,
            caching=False,
            more_settings=settings,
        )
        super().__init__(scheduler, DEPTH, clock, Device(machine, seed))
        self._begin_s = clock.now_s
        self._clock: Clock = clock
        self._served: dict[str, Served] = {}

    @property
    def now_s(self) -> float:
        """Seconds since the run's start."""
        return self._clock.now_s - self._begin_s

    def tokens_of(self, name: str) -> int:
        """Tokens that a request has received; 0 for one that hasn't arrived."""
        return self.tokens.get(name, 0)

    def serve(self, demands: Sequence[Demand], mishap: Mishap | None = None) -> Run:
        """Serve the demands, named `<kind>-<number>`, until all are done."""
        due = deque(sorted((self._begin_s + d.at_s, i, d) for i, d in enumerate(demands)))
        scheduler, clock = self.scheduler, self._clock
        while (due or scheduler.has_unfinished_requests() or self.busy) and self.now_s < LONGEST_S:
            while due and due[0][0] <= clock.now_s:
                self._arrive(*due.popleft())
            if scheduler.has_unfinished_requests():
                self.take(scheduler.schedule())
            elif self.busy:
                self.deliver()
            else:
                clock.now_s = due[0][0]
                continue
            if mishap is not None:
                clock.now_s += mishap(self)
        if faults(scheduler):
            raise RuntimeError(f"headway left steps to vLLM: {faults(scheduler)}")
        return Run(list(self._served.values()), self.now_s, self.steps)

    def received(self, item: Any) -> None:
        super().received(item)
        served = self._served[item.request_id]
        served.token_times_s.extend([self.now_s] * len(item.new_token_ids))
        served.completed |= item.finish_reason is not None

    def _arrive(self, at_s: float, number: int, demand: Demand) -> None:
        name = f"{demand.kind}-{number}"
        self._served[name] = Served(demand)
        self.add(
            make_request(
                demand.prompt_tokens,
                demand.output_tokens,
                name=name,
                priority=demand.priority,
                extra_args=demand.asked,
                arrival_time=at_s,
                block_hasher=None,
            )
        )


@contextmanager
def virtual_time() -> Iterator[Clock]:
    """Headway's engine lives on the clock instead of the machine's."""
    clock, real = Clock(), conductor.time
    conductor.time = tracks.time = clock  # type: ignore[assignment]
    try:
        yield clock
    finally:
        conductor.time = tracks.time = real
