"""Planning of one step."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from headway.core.batching.backlog import Backlog
from headway.core.batching.budget import Allowance
from headway.core.batching.caps import Caps, Occupancy
from headway.core.batching.order import Order, PrefillClock, Rank
from headway.core.batching.shares import Turn
from headway.core.decisions import Chunk, StepPlan
from headway.core.views import Probe, Prompt, Step

ProbeFn = Callable[[str], Probe]
"""How the host judges a waiting prompt, by id, in the step being planned."""

MAX_TRIES: Final = 16
"""Waiting prompts that may be tried in vain in one step."""
WORTH: Final = 5.0
"""A chunk gets this many times the time that reading its context takes, where that is possible."""


class StepPlanner:
    """The scratch pad of one step's plan: what is left to spend, who is mid-prefill."""

    def __init__(
        self,
        backlog: Backlog,
        order: Order,
        caps: Caps,
        clock: PrefillClock,
        step: Step,
        allowance: Allowance,
        now_s: float,
        max_wait_s: float,
        probe: ProbeFn,
        *,
        turns: tuple[bool, ...],
    ) -> None:
        """turns: classes (whether of long prompts) that go first in this step."""
        self._backlog = backlog
        self._clock = clock
        self._model = clock.model
        self._step = step
        self._allowance = allowance
        self._now_s = now_s
        self._max_wait_s = max_wait_s
        self._probe = probe
        self._tokens = allowance.tokens
        self._spent = 0
        self._seconds = allowance.seconds
        self._stretch_s = allowance.stretch_s
        self._floor = allowance.floor_tokens
        self._free_blocks = step.free_blocks
        self._due: str | None = None
        self._due_blocks = 0
        """Who has found no room for too long, and the KV blocks that are kept for it."""
        self._tries = MAX_TRIES
        self._finished = False
        self.waited = False
        """Whether a prompt was left out because a later step will give it a better chunk."""
        self._caps = caps
        self._occupancy = Occupancy(caps)
        for prompt in step.prefills:
            self._occupancy.enter(prompt.tokens)
        self.turn = Turn(turns, backlog, order, self._occupancy, now_s, max_wait_s)
        self._chunks: list[Chunk] = []
        self._admitted: list[Chunk] = []

    def run(self) -> StepPlan:
        """Spend the allowance on prompts in the order's rank."""
        step = self._step
        too_long_s = self._now_s - self._max_wait_s
        self._backlog.begin_step(step.adapters, step.adapter_slots, too_long_s)
        waits = bool(self._backlog) and step.seats > 0
        if waits:
            self._keep_room(too_long_s)
            self._backlog.unpark(self._probe, self._fits, self._now_s)
        self.turn.find_present()
        running = self.turn.rank_running(step.prefills)
        self._merge(running, waits=waits)
        if waits and self._finished and self._tokens > 0:
            self._merge([], waits=waits)
        return StepPlan(
            chunks=tuple(self._chunks),
            admitted=tuple(self._admitted),
            tokens=self._spent,
            limit_s=self._allowance.limit_s,
            reason=self._allowance.reason,
            held_long=self._occupancy.long_full and self._backlog.has_long(),
            capacity_bound=self._is_capacity_bound(),
            nothing_to_spare=self._occupancy.long_full,
        )

    def _is_capacity_bound(self) -> bool:
        """What the engine has is used up, or late prompts show that it isn't enough."""
        if self._spent >= self._step.tokens or len(self._admitted) >= self._step.seats:
            return True
        return self._backlog.lacks_room() or self._backlog.has_yielding()

    def _merge(self, running: list[tuple[Rank, Prompt]], *, waits: bool) -> None:
        """Serve prompts mid-prefill and waiting ones by rank until nothing is left to spend."""
        served = 0
        with closing(self._waiting() if waits else _nobody()) as waiting:
            head = next(waiting, None)
            while self._tokens > 0:
                if head is not None and (served == len(running) or head[0] < running[served][0]):
                    self._admit(head[1], head[0])
                    head = next(waiting, None)
                elif served < len(running):
                    self._continue(running[served][1], running[served][0])
                    served += 1
                else:
                    break

    def _waiting(self) -> Generator[tuple[Rank, Prompt]]:
        """Waiting prompts, ranked, while any may start; those first whose turn it is."""
        self._set_hold()
        offered = set()
        for long in self.turn.classes:
            aged = self._backlog.older(self.turn.aged_before_s, long=long)
            with closing(aged):
                for prompt in aged:
                    if self._done_starting() or self._backlog.holds(prompt):
                        break
                    offered.add(prompt.id)
                    yield self.turn.aged_rank(prompt, long), prompt
                    self._set_hold()
                    if self._backlog.ready(prompt.id):
                        break  # it can't start yet, and those behind it mustn't take its turn
        with closing(self._backlog.draw(self._now_s, self.turn.rank)) as drawn:
            for rank, prompt in drawn:
                if self._done_starting():
                    return
                if prompt.id not in offered:
                    yield rank, prompt
                self._set_hold()

    def _done_starting(self) -> bool:
        return self._tries == 0 or len(self._admitted) >= self._step.seats

    def _continue(self, prompt: Prompt, rank: Rank) -> None:
        """Give an admitted prompt its next chunk."""
        tokens = self._fit(prompt.tokens, prompt.context_tokens, unsplit=prompt.unsplit)
        self._spend(tokens, prompt.tokens, prompt.context_tokens)
        if tokens == prompt.tokens and not prompt.unsplit:  # vLLM may cut it at an image
            self._occupancy.leave(prompt.tokens)
            self._end_before_due(prompt)
            self._finished = True
        if tokens:
            self._chunks.append(Chunk(prompt.id, tokens, prompt.tokens - tokens))
        self.turn.charge(prompt, rank, tokens)

    def _admit(self, prompt: Prompt, rank: Rank) -> None:
        """Start a waiting prompt, set it aside, or pass it over in this step."""
        seen = self._probe(prompt.id)
        if seen.ask is not None and self._fits(prompt.id, seen) and not self._ends(prompt, seen):
            seen = seen.ask()
        if seen.blocked is not None or not self._fits(prompt.id, seen):
            self._backlog.park(prompt.id, seen, self._now_s)
            self.turn.left(prompt)
            self._tries -= 1
            return
        if seen.loads:
            self._fetch(prompt, seen)
            return
        planned = self._chunk(prompt, seen)
        whole = planned == seen.tokens and seen.exact
        older = self.turn.before(prompt)
        if not planned or not (whole or self._occupancy.admits_partial(seen.tokens, older)):
            self._tries -= 1
            if seen.tokens != prompt.tokens:
                self._backlog.add(_judged(prompt, seen), self._now_s)
            if planned and older and self._occupancy.admits_partial(seen.tokens):
                self._admit_aged(older)
            return
        self._spend(planned, seen.tokens, seen.context_tokens)
        self._start(prompt, seen)
        self.turn.charge(prompt, rank, planned)
        if planned < seen.tokens or not seen.exact:
            self._occupancy.enter(seen.tokens)
        else:
            self._end_before_due(prompt)
        self._admitted.append(Chunk(prompt.id, planned, seen.tokens - planned))

    def _start(self, prompt: Prompt, seen: Probe) -> None:
        self._backlog.start(prompt, self._now_s)
        self.turn.left(prompt)
        self._free_blocks -= seen.blocks
        if prompt.id == self._due:
            self._due_blocks = 0

    def _chunk(self, prompt: Prompt, seen: Probe) -> int:
        return self._fit(seen.tokens, seen.context_tokens, unsplit=prompt.unsplit)

    def _ends(self, prompt: Prompt, seen: Probe) -> bool:
        """What is left finishes the prompt, however little of it is cached elsewhere."""
        return self._chunk(prompt, seen) == seen.tokens

    def _fetch(self, prompt: Prompt, seen: Probe) -> None:
        """Let a prompt's KV be fetched. It takes one token so that the host looks at it."""
        self._tokens -= 1
        self._spent += 1
        if not seen.exact:  # what was to be fetched may be gone, and the prompt be computed
            self._occupancy.enter(seen.tokens)
        self._start(prompt, seen)
        self._admitted.append(Chunk(prompt.id, 1, 0))

    def _fit(self, tokens: int, context_tokens: int, *, unsplit: bool) -> int:
        """The chunk that what is left allows for a prompt of `tokens`."""
        at_most = min(tokens, self._tokens, self._step.chunk_tokens)
        if unsplit:
            return at_most
        by_time = self._model.largest_chunk(self._seconds, context_tokens, at_most)
        if by_time < at_most:
            worth_s = WORTH * self._model.read_s(context_tokens)
            if self._seconds < worth_s and worth_s > self._allowance.base_s:
                return self._fit_costly(worth_s, context_tokens, at_most)
        return max(by_time, min(at_most, self._floor))

    def _fit_costly(self, worth_s: float, context_tokens: int, at_most: int) -> int:
        """A chunk that spends most of its time on reading its context isn't worth its step.

        It gets more time if the decodes allow that, waits if they will later,
        and takes what there is otherwise.
        """
        if self._stretch_s < min(worth_s, self._allowance.later_s):
            self.waited = True
            return 0
        seconds = min(worth_s, self._stretch_s)
        by_time = self._model.largest_chunk(seconds, context_tokens, at_most)
        return max(by_time, min(at_most, self._floor))

    def _spend(self, chunk: int, tokens: int, context_tokens: int) -> None:
        """Take a chunk of a prompt of `tokens` from what is left."""
        self._spent += chunk
        uncut = chunk in {0, tokens, self._step.chunk_tokens}
        self._tokens = self._tokens - chunk if uncut else 0
        self._floor = max(0, self._floor - chunk)
        seconds = self._model.chunk_s(chunk, context_tokens)
        self._seconds -= seconds
        self._stretch_s -= seconds

    def _end_before_due(self, prompt: Prompt) -> None:
        """A prompt gets its first token from this step: end the step before that is due."""
        if self._allowance.limit_s is None:
            return
        spent_s = self._allowance.base_s + self._allowance.seconds - self._seconds
        left_s = self._clock.ttft_deadline_s(prompt) - self._now_s - spent_s
        if left_s > 0:
            self._seconds = min(self._seconds, left_s)
            self._stretch_s = min(self._stretch_s, left_s)

    def _keep_room(self, too_long_s: float) -> None:
        """One that has found no room for too long gets it; others start beside it, if they can."""
        due = self._backlog.roomless_before(too_long_s)
        if due is None:
            return
        seen = self._probe(due)
        self._due, self._due_blocks = due, seen.blocks
        if seen.blocked is not None:
            self._backlog.park(due, seen, self._now_s)
        elif self._fits(due, seen):  # whoever else of its size is older
            self._backlog.wake(due, self._now_s)

    def _fits(self, prompt_id: str, seen: Probe, beside_blocks: int = 0) -> bool:
        """KV blocks are there for the whole prompt; vLLM itself decides in an idle engine.

        beside_blocks: those of others that are to start too.
        """
        if prompt_id != self._due:
            beside_blocks += self._due_blocks
        idle = self._step.idle and not self._admitted and not beside_blocks
        return idle or seen.blocks + beside_blocks <= self._free_blocks

    def _admit_aged(self, classes: list[bool]) -> None:
        """The place that is kept for the oldest of these classes is free: it takes it."""
        aged = self.turn.oldest(classes)
        if not (self._done_starting() or self._backlog.holds(aged)):
            self._admit(aged, self.turn.rank(aged))

    def _set_hold(self) -> None:
        """Pass over long prompts while none may start, unless one would fit whole."""
        full = self._occupancy.long_full
        self._backlog.hold_long = full and self._tokens <= self._caps.long_tokens

    def rejudge_long(self) -> None:
        """Look again at the long prompt held first: its prefix may be cached by now."""
        head = self._backlog.long_head(self._now_s) if self._occupancy.long_full else None
        if head is not None:
            seen = self._probe(head.id)
            if seen.ask is not None:
                seen = seen.ask()
            if seen.blocked is not None:
                self._backlog.park(head.id, seen, self._now_s)
            elif seen.tokens != head.tokens:
                self._backlog.add(_judged(head, seen), self._now_s)


def _nobody() -> Generator[tuple[Rank, Prompt]]:
    yield from ()


def _judged(prompt: Prompt, seen: Probe) -> Prompt:
    return prompt._replace(
        tokens=seen.tokens, context_tokens=seen.context_tokens, total_tokens=seen.tokens
    )
