"""When steps start and end, and what they computed."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from vllm.v1.request import Request

from headway.core.latency import StepShape, StepTimeModel, attention_work

PAUSE_S: Final = 0.02
"""A longer gap between two steps is idleness, not part of the later step."""


@dataclass(slots=True)
class MeasuredStep:
    """A step that has run: its shape, the predicted and the measured duration in seconds."""

    shape: StepShape
    predicted_s: float
    measured_s: float


@dataclass(slots=True)
class _InFlight:
    output: Any
    shape: StepShape
    scheduled_s: float
    predicted_s: float
    completed: list[Request]


class StepClock:
    """Measures steps, also when the next is scheduled while one runs (async scheduling).

    A step lasts from the end of the one before, or from its own start if the
    engine was idle, until its results arrive.
    """

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model
        self._in_flight: deque[_InFlight] = deque()
        self._last_end_s = 0.0
        self._decode_tokens = 0
        self._context_tokens = 0
        self._completed: list[Request] = []

    def start_s(self, now_s: float) -> float:
        """When a step scheduled now will start running."""
        if not self._in_flight:
            return now_s
        ends_s = max(self._last_end_s, self._in_flight[0].scheduled_s)
        ends_s += sum(step.predicted_s for step in self._in_flight)
        return max(now_s, ends_s)

    def decodes(self, tokens: int, context_tokens: int) -> None:
        """The decode part of the step about to be scheduled."""
        self._decode_tokens = tokens
        self._context_tokens = context_tokens

    def started(self, output: Any, prefills: list[tuple[Request, int]], now_s: float) -> None:
        """A step was scheduled with these prefill chunks (request, tokens)."""
        tokens, work, read = 0, 0.0, 0
        completed = []
        for request, chunk in prefills:
            tokens += chunk
            context = max(0, request.num_computed_tokens - chunk)
            work += attention_work(chunk, context)
            read += context
            if not request.is_prefill_chunk:
                completed.append(request)
        decode_tokens = max(0, output.total_num_scheduled_tokens - tokens)
        shape = StepShape(tokens, work, read, decode_tokens, self._context_tokens)
        predicted_s = self._model.predict(shape)
        self._in_flight.append(_InFlight(output, shape, now_s, predicted_s, completed))

    def finished(self, output: Any, now_s: float) -> MeasuredStep | None:
        """The results of a step arrived; None if it computed nothing or is unknown."""
        if all(step.output is not output for step in self._in_flight):
            return None
        while self._in_flight:
            step = self._in_flight.popleft()
            if step.output is not output:
                continue
            begin_s = step.scheduled_s
            if begin_s - self._last_end_s < PAUSE_S:
                begin_s = self._last_end_s
            self._last_end_s = now_s
            self._completed.extend(step.completed)
            if not output.total_num_scheduled_tokens:
                return None
            self._model.observe(step.shape, now_s - begin_s)
            return MeasuredStep(step.shape, step.predicted_s, now_s - begin_s)
        return None

    def take_completed_prefills(self) -> list[Request]:
        """Requests whose prompt was finished by the steps measured since the last call."""
        completed, self._completed = self._completed, []
        return completed
