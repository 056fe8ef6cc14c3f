"""The share of prefill that is guaranteed to those who would otherwise go last.

Those are the prompts of the order's *yielding* class and, under every order, those that
have waited longer than `max_wait_s` (*aged*). Short and long ones have an account each:
of every prefill token that is spent while some of them are there, the account is owed its
share; what they get in their turn is charged. A class that is owed something has its turn:
in that step its prompts go first, aged ones before others and the oldest before all. One
that can't start yet keeps its turn, and younger ones leave it a place.

So over any stretch they get their share of all prefill tokens, less one step's. docs/policies.md
derives from it how long a prompt can wait.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Final

from headway.core.batching.backlog import Backlog
from headway.core.batching.caps import Occupancy
from headway.core.batching.order import Order, Rank
from headway.core.views import Prompt

SHARE: Final = 0.05
"""Of each class. What it gets in the order's own rank counts; so a class that is served
anyway costs nobody anything."""


class Shares:
    """The two accounts, by whether the class is that of long prompts; in tokens."""

    def __init__(self) -> None:
        self._owed = {False: 0.0, True: 0.0}

    def turns(self) -> tuple[bool, ...]:
        """The classes that go first in the next step, the one that is owed most at first."""
        owed = self._owed
        return tuple(sorted((long for long in owed if owed[long] > 0), key=lambda c: (-owed[c], c)))

    def account(self, tokens: int, present: Collection[bool], served: Mapping[bool, int]) -> None:
        """Book a step.

        tokens: its prefill tokens; present: classes of which some had tokens to compute;
        served: tokens charged to each class.
        """
        if not tokens:
            return
        for long, owed in self._owed.items():
            due = SHARE * tokens if long in present else 0.0
            # What is left over for them outside their turn isn't charged beyond what is due.
            got = float(served[long]) if owed > 0 else min(float(served[long]), due)
            # What they couldn't use isn't saved up: it would come back as one long stall.
            most = float(tokens) if long in present else 0.0
            self._owed[long] = min(owed + due - got, most)


class Turn:
    """Who goes first in one step by the share of its class, and what is charged for it.

    present, served: what `Shares.account` wants to know of the step.
    """

    def __init__(
        self,
        classes: tuple[bool, ...],
        backlog: Backlog,
        order: Order,
        occupancy: Occupancy,
        now_s: float,
        max_wait_s: float,
    ) -> None:
        """classes: those whose turn it is; occupancy: the step's, before anything is planned."""
        self.classes = classes
        self._backlog = backlog
        self._order = order
        self._occupancy = occupancy
        self._now_s = now_s
        self.aged_before_s = now_s - max_wait_s
        self.present: set[bool] = set()
        self.served = {False: 0, True: 0}
        self._waiting: dict[bool, Prompt] = {}
        """By class the oldest aged prompt that waits."""
        self._first: dict[bool, tuple[float, str]] = {}
        """By class the age of the oldest aged one, waiting or mid-prefill."""
        self._running: dict[str, bool] = {}
        """Classes of prompts mid-prefill: what started long stays long to its last chunk."""

    def aged(self, prompt: Prompt) -> bool:
        """Whether it has waited too long."""
        return prompt.arrival_s < self.aged_before_s

    def find_present(self) -> None:
        """Find out who waits with a guaranteed share."""
        self.present |= self._backlog.yielding(self._now_s)
        for long in (False, True):
            with closing(self._backlog.older(self.aged_before_s, long=long)) as older:
                oldest = next(older, None)
            if oldest is not None:
                self._waiting[long] = oldest
                self._first[long] = _age(oldest)
                self.present.add(long)

    def rank_running(self, prompts: Sequence[Prompt]) -> list[tuple[Rank, Prompt]]:
        """Prompts mid-prefill by rank; to be called once, after `find_present`."""
        is_long = self._occupancy.caps.is_long
        for prompt in prompts:
            self._running[prompt.id] = is_long(max(prompt.tokens, prompt.total_tokens))
            if self.aged(prompt) and not prompt.resumed:
                long = self._class(prompt)
                self._first[long] = min(_age(prompt), self._first.get(long, _age(prompt)))
                self.present.add(long)
        return sorted((self._running_rank(prompt), prompt) for prompt in prompts)

    def rank(self, prompt: Prompt) -> Rank:
        """A prompt's rank, lowest first, in the order but for those of a class that has its turn.

        Of these (0, 0, …) is the rank of aged ones, (0, 1, …) that of the yielding class. Aged
        ones that wait are offered by themselves, and here rank like the others.
        """
        rank = self._backlog.rank(prompt, self._now_s)
        long = self._class(prompt)
        if long in self.classes and self._order.yielding(prompt, self._now_s):
            return (0, 1, self.classes.index(long), *rank)
        return (1, *rank)

    def aged_rank(self, prompt: Prompt, long: bool) -> Rank:  # noqa: FBT001  classes are booleans
        """The rank of one that goes first for its age, or to make place for one of class `long`."""
        return (0, 0, self.classes.index(long), *_age(prompt))

    def before(self, prompt: Prompt) -> list[bool]:
        """Classes of which an aged prompt waits that is older: this one leaves it a place."""
        return [long for long, oldest in self._waiting.items() if _age(oldest) < _age(prompt)]

    def oldest(self, classes: Sequence[bool]) -> Prompt:
        """The oldest of those that wait in these classes."""
        return min((self._waiting[long] for long in classes), key=_age)

    def left(self, prompt: Prompt) -> None:
        """A waiting prompt has started or was set aside."""
        for long in [c for c, oldest in self._waiting.items() if oldest.id == prompt.id]:
            del self._waiting[long]

    def charge(self, prompt: Prompt, rank: Rank, tokens: int) -> None:
        """Charge what a class got in its turn, and what the first in its line got otherwise.

        Not what younger ones got: it would be charged to the one that waits behind.
        """
        if rank[0] == 0:
            self.served[self.classes[rank[2]]] += tokens
            return
        long = self._class(prompt)
        if self._first.get(long, _age(prompt)) == _age(prompt) and (
            long in self._first or self._order.yielding(prompt, self._now_s)
        ):
            self.served[long] += tokens

    def _running_rank(self, prompt: Prompt) -> Rank:
        if prompt.resumed:  # goes first anyway
            return (1, *self._backlog.rank(prompt, self._now_s))
        for long in [self._class(prompt)] if self.aged(prompt) else self._held_up(prompt):
            if long in self.classes:
                return self.aged_rank(prompt, long)
        if self._order.yielding(prompt, self._now_s):
            self.present.add(self._class(prompt))
        return self.rank(prompt)

    def _held_up(self, prompt: Prompt) -> list[bool]:
        """Classes whose oldest can't start because this one mid-prefill has the place."""
        capped = self._occupancy.long_full and self._class(prompt)
        return [long for long in self._waiting if self._occupancy.full or (long and capped)]

    def _class(self, prompt: Prompt) -> bool:
        known = self._running.get(prompt.id)
        return self._occupancy.caps.is_long(prompt.tokens) if known is None else known


def _age(prompt: Prompt) -> tuple[float, str]:
    return (prompt.arrival_s, prompt.id)
