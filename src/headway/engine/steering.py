"""Headway's hold on a vLLM scheduler, and what keeps headway's faults from vLLM.

A fault is an exception in headway's own code, wherever vLLM calls it. It leaves a step to vLLM: all
is put back, and `waiting` becomes a queue of vLLM's own that holds all who wait, in vLLM's order.
Nothing of headway's has a say in such a step. The next is planned again by a conductor made anew
from what the scheduler holds, so that what the fault left half-done is gone with the old one.

After `MOST_IN_A_ROW` faults without a step between them that was planned and went well, headway
stands aside: vLLM keeps its own queue until the engine is restarted.

What vLLM's own code raises isn't touched.
"""

import contextlib
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from prometheus_client import Counter, Gauge
from vllm.logger import init_logger
from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.request import Request, RequestStatus

from headway.core.batching.settings import BatchingSettings
from headway.engine.compat import failing
from headway.engine.conductor import Conductor

logger = init_logger("vllm.headway")

MOST_IN_A_ROW: Final = 8


class _FaultMetrics(NamedTuple):
    steps: Counter
    aside: Gauge


@cache
def _metrics() -> _FaultMetrics:
    """Made once a process, at the start, so that there is a 0 to be seen."""
    return _FaultMetrics(
        Counter("headway:fallback_steps", "Steps left to vLLM because headway's code failed."),
        Gauge(
            "headway:stands_aside",
            "Engine cores in which headway leaves all scheduling to vLLM until they are restarted.",
            multiprocess_mode="livesum",
        ),
    )


class Steering:
    """Where vLLM's scheduler calls headway. Raises nothing once it is made.

    conductor: the one that plans now; another one after a fault.
    """

    def __init__(self, scheduler: Any, settings: BatchingSettings) -> None:
        """Raises SettingError for settings that this engine can't follow."""
        self._vllm = scheduler
        self._settings = settings
        self._failed = False
        """There was a fault since the last step began."""
        self._in_a_row = 0
        self._first: Any = None
        """After a fault: the first step that was planned again."""
        self._told: set[tuple[str, str]] = set()
        self.aside = False
        self._fail = failing(scheduler)
        self._refused: dict[str, str] = {}
        self._planned = False
        """Whether there was anything to be planned in the last step."""
        self.conductor = Conductor(scheduler, settings, self._contain)
        with contextlib.suppress(Exception):
            _metrics()

    @property
    def _steers(self) -> bool:
        """Whether steps are the conductor's: after a fault they aren't, until it is made anew."""
        return self._vllm.waiting is self.conductor.queue

    # One step

    def begin_step(self) -> None:
        """Plan the step, or leave it to vLLM."""
        if self.aside:
            self._count()
            return
        failed, self._failed = self._failed, False
        if failed or not self._contain(self._plan, default=False):
            self._failed = False
            self._leave_to_vllm()

    def _plan(self) -> bool:
        if not self._steers:
            learned = self.conductor.model if self._in_a_row < 2 else None
            self.conductor = Conductor(self._vllm, self._settings, self._contain, learned)
        if not self._failed:
            self._planned = self.conductor.begin_step()
        return not self._failed

    def _leave_to_vllm(self) -> None:
        self.conductor.put_back()
        if self._steers:
            queue = create_request_queue(self._vllm.policy)
            for request in sorted(self._vllm.waiting, key=_preempted_then_arrival):
                queue.add_request(request)
            self._vllm.waiting = queue
        self._first = None
        self._count()
        if self._in_a_row >= MOST_IN_A_ROW:
            self.aside = True
            with contextlib.suppress(Exception):
                _metrics().aside.set(1)
            logger.error(
                "headway stands aside until this engine is restarted: %d faults in a row. vLLM "
                "schedules by itself (%s); the tracebacks above say what failed.",
                self._in_a_row,
                self._vllm.policy.value,
            )

    def return_withheld(self) -> None:
        """The batch is about to be written down."""
        self._contain(self.conductor.return_withheld)

    def end_step(self) -> None:
        """`schedule()` has returned or failed."""
        if self._steers:
            self.conductor.put_back()
            self._contain(self.conductor.end_step)

    def scheduled(self, output: Any) -> None:
        """A step has been scheduled."""
        if self._steers:
            self._contain(self.conductor.scheduled, output)
            if self._in_a_row and self._planned and self._first is None:
                self._first = output if output.total_num_scheduled_tokens else None

    def finished(self, output: Any) -> None:
        """A step's results are here and about to be handed out."""
        if self._steers:
            self._contain(self.conductor.finished, output)
        self._contain(self._fail_refused)

    def _fail_refused(self) -> None:
        refused, self._refused = self._refused, {}
        for request_id, why in refused.items():
            if request_id in self._vllm.requests:
                self._fail(request_id, why)

    def delivered(self, output: Any, *, kv_lost: bool) -> None:
        """A step's results have been handed out. kv_lost: KV couldn't be loaded in it."""
        if kv_lost and not self.aside:
            self._contain(self.conductor.kv_lost)
        if self._steers:
            self._contain(self.conductor.tokens_delivered)
        if self._first is output and not self._failed:
            self._in_a_row, self._first = 0, None

    def made_stats(self, stats: Any) -> None:
        """Statistics of the engine, or None, are about to leave it."""
        if self._steers:
            self._contain(self.conductor.tell_deferred, stats)

    # Requests

    def added(self, request: Request) -> None:
        """A request has come. One that can never run here fails in the next step."""
        why = None if self.aside else self._contain(self.conductor.refuses, request)
        if why is not None:
            logger.warning("request %s is refused: %s", request.request_id, why)
            self._refused[request.request_id] = why

    def forget(self, request: Request) -> None:
        """The request leaves the engine."""
        if self._steers:
            self._contain(self.conductor.tracks.forget, request.request_id)

    # Faults

    def _contain(self, part: Callable[..., Any], *args: Any, default: Any = None) -> Any:
        """What `part` returns; `default` if it raises, and the next step is then vLLM's."""
        try:
            return part(*args)
        except Exception as error:  # noqa: BLE001  whatever it is, vLLM must go on
            self._fault(error)
            return default

    def _fault(self, error: Exception) -> None:
        self._in_a_row += not self._failed
        self._failed = True
        place, kind = _place(error), type(error).__qualname__
        if (place, kind) not in self._told:
            self._told.add((place, kind))
            logger.error(
                "headway failed in %s (%s); vLLM schedules a step by itself, then headway goes on. "
                "Told once for each place, counted in headway:fallback_steps_total.",
                place,
                kind,
                exc_info=error,
            )

    def _count(self) -> None:
        with contextlib.suppress(Exception):
            _metrics().steps.inc()


def _place(error: Exception) -> str:
    """Where it was raised: function and line."""
    place, line = "?", 0
    for frame, line_number in traceback.walk_tb(error.__traceback__):
        place, line = frame.f_code.co_qualname, line_number
    return f"{place}:{line}"


def _preempted_then_arrival(request: Request) -> tuple[bool, float]:
    """The order of vLLM's queue that serves who comes first; its other one sorts by itself."""
    return request.status != RequestStatus.PREEMPTED, request.arrival_time
