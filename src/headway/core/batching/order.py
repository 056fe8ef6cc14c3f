"""Who gets prefill tokens first.

An order sorts prompts into lanes. Within a lane the order never changes while
prompts wait (`key`), so a lane is a heap; between lanes it may change with time
(`rank`), so only the lanes' heads are compared. Planning a step therefore costs
the same however many prompts wait.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from headway.core.batching.caps import Caps
from headway.core.batching.settings import PRIORITY_LEVELS, BatchingSettings
from headway.core.latency import StepTimeModel
from headway.core.slo import Slo
from headway.core.views import Prompt

Rank = tuple[Any, ...]


class Order(Protocol):
    """A total order on prompts at a moment. Ties end with arrival, then id."""

    def lane(self, prompt: Prompt, now_s: float) -> Rank:
        """Prompts of equal lane keep their relative order for ever.

        It begins with whether they are `yielding`.
        """

    def key(self, prompt: Prompt, now_s: float) -> Rank:
        """The order within the lane the prompt has now, lowest first."""

    def rank(self, prompt: Prompt, now_s: float) -> Rank:
        """The order of prompts of all lanes now, lowest first."""

    def yielding(self, prompt: Prompt, now_s: float) -> bool:
        """Belongs to the class that is guaranteed only a share of the step budget."""


class Fcfs:
    """By client priority, then in order of arrival."""

    def lane(self, prompt: Prompt, now_s: float) -> Rank:
        return (False,)

    def key(self, prompt: Prompt, now_s: float) -> Rank:
        return (prompt.priority, prompt.arrival_s, prompt.id)

    def rank(self, prompt: Prompt, now_s: float) -> Rank:
        return self.key(prompt, now_s)

    def yielding(self, prompt: Prompt, now_s: float) -> bool:
        return False


class ShortFirst(Fcfs):
    """Short prompts before long ones, first-come in each class.

    A prompt that started long stays in that class to its last chunk.
    """

    def __init__(self, caps: Caps) -> None:
        self._caps = caps

    def lane(self, prompt: Prompt, now_s: float) -> Rank:
        return (self.yielding(prompt, now_s),)

    def rank(self, prompt: Prompt, now_s: float) -> Rank:
        return (self.yielding(prompt, now_s), *self.key(prompt, now_s))

    def yielding(self, prompt: Prompt, now_s: float) -> bool:
        return self._caps.is_long(max(prompt.tokens, prompt.total_tokens))


class Penalised:
    """Highest response ratio (wait + work) / work first, shifted by client priority.

    Work is the prefill time alone, so a long prompt ages slowly. One level of
    client priority is worth one more `work` of waiting. (Highest response ratio
    next: Brinch Hansen, 1971.)
    """

    def __init__(self, clock: "PrefillClock") -> None:
        self._clock = clock

    def lane(self, prompt: Prompt, now_s: float) -> Rank:
        return (False, _level(prompt.priority), size_class(prompt.tokens))

    def key(self, prompt: Prompt, now_s: float) -> Rank:
        return (prompt.arrival_s, prompt.id)

    def rank(self, prompt: Prompt, now_s: float) -> Rank:
        work_s = self._clock.alone_s(prompt.tokens, prompt.context_tokens)
        ratio = 1 + max(0.0, now_s - prompt.arrival_s) / work_s
        return (_level(prompt.priority) - ratio, prompt.arrival_s, prompt.id)

    def yielding(self, prompt: Prompt, now_s: float) -> bool:
        return False


class FeasibleFirst:
    """Prompts that can still meet their TTFT limit, least work first; late ones as if larger.

    Work is compared by size class; in a class the earliest deadline goes first.
    A late prompt counts as `LATE_CLASSES` larger: it lets all those pass that
    its own work could make late, and still goes before a long prompt that has
    time.
    """

    LATE_CLASSES: Final = 12
    """Three powers of two: eight times its work."""

    def __init__(self, clock: "PrefillClock") -> None:
        self._clock = clock

    def lane(self, prompt: Prompt, now_s: float) -> Rank:
        late = self.yielding(prompt, now_s)
        size = size_class(prompt.tokens) + self.LATE_CLASSES * late
        return (late, _level(prompt.priority), size)

    def key(self, prompt: Prompt, now_s: float) -> Rank:
        return (self._clock.ttft_deadline_s(prompt), prompt.arrival_s, prompt.id)

    def rank(self, prompt: Prompt, now_s: float) -> Rank:
        late, level, size = self.lane(prompt, now_s)
        deadline_s = self._clock.ttft_deadline_s(prompt)
        return (level, size, late, deadline_s, prompt.arrival_s, prompt.id)

    def yielding(self, prompt: Prompt, now_s: float) -> bool:
        return not self._clock.feasible(prompt, now_s)


class PrefillClock:
    """Prefill times and TTFT deadlines from the learned step time."""

    GUESS_S_PER_TOKEN: Final = 1e-4

    def __init__(self, model: StepTimeModel, settings: BatchingSettings, step_tokens: int) -> None:
        self.model = model
        self._slo = Slo(settings.ttft_slo_s, settings.ttft_slo_factor, settings.tpot_slo_s)
        self._step_tokens = step_tokens
        self._alone_s: dict[tuple[int, int], float] = {}
        self._judged: dict[str, tuple[Prompt, float, float, bool]] = {}
        self._step_s = 0.0

    def new_step(self, step_s: float = 0.0) -> None:
        """Ask the model anew: it has learned. step_s: how long the step being planned may take."""
        self._step_s = step_s
        self._alone_s.clear()
        self._judged.clear()

    def alone_s(self, tokens: int, context_tokens: int) -> float:
        """Seconds to prefill `tokens` alone; above 0, a guess while nothing is learned."""
        size = (tokens, context_tokens)
        seconds = self._alone_s.get(size)
        if seconds is None:
            seconds = max(1, tokens) * self.GUESS_S_PER_TOKEN
            if self.model.ready:
                seconds = max(1e-6, self.model.alone_s(tokens, context_tokens, self._step_tokens))
            self._alone_s[size] = seconds
        return seconds

    def engine_ttft_s(self, tokens: int) -> float:
        """The TTFT limit of a prompt whose client set none."""
        return self._slo.ttft_limit_s(self.alone_s(tokens, 0))

    def _limits_s(self, prompt: Prompt) -> tuple[float, float]:
        """Its TTFT limit, the client's own or the engine's; and the tighter of these two."""
        engine_s = self.engine_ttft_s(max(prompt.total_tokens, prompt.tokens))
        limit_s = engine_s if prompt.ttft_slo_s is None else prompt.ttft_slo_s
        return limit_s, min(limit_s, engine_s)

    def ttft_deadline_s(self, prompt: Prompt) -> float:
        """The moment by which its first token is due."""
        judged = self._judged.get(prompt.id)
        if judged is not None and judged[0] is prompt:
            return judged[1]
        return prompt.arrival_s + self._limits_s(prompt)[0]

    def feasible(self, prompt: Prompt, now_s: float) -> bool:
        """Whether it can still meet its TTFT limit if it is served at once.

        A first token comes when its step ends: in overload those served at the last moment
        would all be late by a part of a step.
        Of a limit wider than the engine's the engine's counts: where others are late, one
        that asked for more time would go before them, as it is late later.
        Asked several times for a prompt while a step is planned; worked out once.
        """
        judged = self._judged.get(prompt.id)
        if judged is not None and judged[0] is prompt and judged[2] == now_s:
            return judged[3]
        limit_s, tighter_s = self._limits_s(prompt)
        left_s = self.alone_s(prompt.tokens, prompt.context_tokens)
        feasible = now_s + max(left_s, self._step_s) <= prompt.arrival_s + tighter_s
        self._judged[prompt.id] = (prompt, prompt.arrival_s + limit_s, now_s, feasible)
        return feasible


def size_class(tokens: int) -> int:
    """Sizes within a quarter of a power of two share a class."""
    tokens = max(1, tokens)
    top = tokens.bit_length()
    return 4 * top + ((tokens << 2 >> (top - 1)) & 3)


def _level(priority: int) -> int:
    return max(-PRIORITY_LEVELS, min(PRIORITY_LEVELS, priority))


ORDER_BY_NAME: Final[Mapping[str, Callable[[Caps, PrefillClock], Order]]] = {
    "fcfs": lambda caps, clock: Fcfs(),
    "short-first": lambda caps, clock: ShortFirst(caps),
    "penalised": lambda caps, clock: Penalised(clock),
    "feasible-first": lambda caps, clock: FeasibleFirst(clock),
}
