"""The prompts that wait, in lanes."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator
from typing import Final

from headway.core.batching.adapters import AdapterSlots
from headway.core.batching.heap import Entry, LazyHeap
from headway.core.batching.order import Order, Rank
from headway.core.batching.parked import Parked
from headway.core.batching.shelf import Shelf
from headway.core.views import Probe, Prompt

RankFn = Callable[[Prompt], Rank]
Head = tuple[Rank, Rank, Prompt, bool]
"""A prompt that may be next: its rank, its lane, and whether it was taken from it already."""
LONG: Final = 0
YIELDING: Final = 1
"""Where a lane says whether its prompts are long, and (first of the order's own) go last."""
MOVES: Final = 8
MAX_MOVES: Final = 64
"""Prompts that may change their lane in one draw: a few, and two more for each that has come since
the last one, in all no more than `MAX_MOVES`. Where an engine can't keep up as many turn late as
come, and those that don't change their lane hide those behind them."""
BLOCKED_LOOKS: Final = 8
"""Prompts blocked for one reason that are looked at in vain in one step."""


class Backlog:
    """Waiting prompts; `draw` yields them in order without looking at all of them.

    Adding, discarding and drawing one prompt cost O(log n).

    Prompts of LoRA adapters that get no slot are passed over as a whole. Any other prompt
    that can't start now (`park`) is out of the way of those behind it, until what it
    waits for is there (`unpark`, `wake`).
    """

    def __init__(self, order: Order, is_long: Callable[[int], bool]) -> None:
        self._order = order
        self._is_long = is_long
        self._prompts: dict[str, Prompt] = {}
        self._shelves: OrderedDict[int | None, Shelf] = OrderedDict()
        """In the order in which a prompt of each has started last."""
        self._slots = AdapterSlots()
        self._parked = Parked()
        self._moves = 0
        self._came = 0
        self.hold_long = False
        """While set, `draw` passes over long prompts."""

    def __len__(self) -> int:
        return len(self._prompts)

    def __contains__(self, prompt_id: str) -> bool:
        return prompt_id in self._prompts

    def add(self, prompt: Prompt, now_s: float) -> None:
        """Take in a prompt, or replace the one of the same id."""
        before = self._prompts.get(prompt.id)
        self._came += before is None
        if before is not None and before.adapter != prompt.adapter:
            self._take_down(before)
        self._parked.free(prompt.id)
        self._prompts[prompt.id] = prompt
        shelf = self._shelves.get(prompt.adapter)
        if shelf is None:
            shelf = self._shelves[prompt.adapter] = Shelf(now_s)
        shelf.put(prompt, self._lane(prompt, now_s), self._key(prompt, now_s))

    def discard(self, prompt_id: str) -> None:
        """Forget a prompt; unknown ids are ignored."""
        prompt = self._prompts.pop(prompt_id, None)
        if prompt is not None:
            self._parked.forget(prompt_id)
            self._take_down(prompt)

    def start(self, prompt: Prompt, now_s: float) -> None:
        """A prompt leaves because it starts."""
        self._slots.take(prompt.adapter)
        shelf = self._shelves.get(prompt.adapter)
        if shelf is not None:
            shelf.since_s = now_s
            self._shelves.move_to_end(prompt.adapter)
        self.discard(prompt.id)

    def _take_down(self, prompt: Prompt) -> None:
        shelf = self._shelves.get(prompt.adapter)
        if shelf is not None:
            shelf.discard(prompt.id)
            if not shelf:
                del self._shelves[prompt.adapter]

    def rank(self, prompt: Prompt, now_s: float) -> Rank:
        """Lowest goes first: those preempted or to be fetched, by arrival; then the order."""
        if prompt.resumed or prompt.loads:
            return (False, prompt.arrival_s, prompt.id)
        return (True, *self._order.rank(prompt, now_s))

    def begin_step(
        self, adapters: Collection[int], free_slots: int, waited_too_long_s: float
    ) -> None:
        """Which adapters are loaded in the step being planned, and how many more can be.

        waited_too_long_s: an adapter none of whose prompts has started since gets the next slot.
        """
        self.hold_long = False
        self._slots.begin(adapters, free_slots, None)
        due = next((a for a in self._shelves if not self._slots.is_loaded(a)), None)
        if due is not None and self._shelves[due].since_s < waited_too_long_s:
            self._slots.begin(adapters, free_slots, due)

    def park(self, prompt_id: str, seen: Probe, now_s: float) -> None:
        """Set a prompt aside that can't start now: it is blocked, or lacks room."""
        prompt = self._prompts[prompt_id]
        self._take_down(prompt)
        if seen.blocked is None:
            self._parked.lacks_room(prompt, seen.blocks, now_s)
        else:
            self._parked.block(prompt_id, seen.blocked)

    def wake(self, prompt_id: str, now_s: float) -> None:
        """What a prompt waited for is there; ignored if it isn't set aside."""
        if prompt_id in self._parked:
            self.add(self._prompts[prompt_id], now_s)

    def unpark(
        self, probe: Callable[[str], Probe], fits: Callable[[str, Probe, int], bool], now_s: float
    ) -> None:
        """Let those back in that can start by now.

        Of those that lack room the first of each class is looked at, and the next while they
        fit together; of those blocked the next in turn, until `BLOCKED_LOOKS` of a reason
        were looked at in vain.
        fits: whether there is room for a prompt beside so many blocks.
        """
        blocks = 0
        for queue in self._parked.roomless():
            while (prompt_id := queue.first()) is not None:
                seen = probe(prompt_id)
                if seen.blocked is not None or not fits(prompt_id, seen, blocks):
                    self.park(prompt_id, seen, now_s)
                    break
                blocks += seen.blocks
                self.wake(prompt_id, now_s)
        for reason in self._parked.reasons():
            looks = BLOCKED_LOOKS
            for prompt_id in self._parked.blocked(reason):
                seen = probe(prompt_id)
                if seen.blocked is None:
                    self.wake(prompt_id, now_s)
                    continue
                self._parked.block(prompt_id, seen.blocked)
                looks -= 1
                if looks == 0:
                    break

    def lacks_room(self) -> bool:
        """Whether a prompt is set aside for want of room."""
        return bool(self._parked.roomless())

    def roomless_before(self, since_s: float) -> str | None:
        """Who found no room first and hasn't started since, if that was before `since_s`."""
        first = self._parked.longest_roomless()
        return first[0] if first is not None and first[1] < since_s else None

    def without_slot(self) -> int:
        """How many prompts wait only for their adapter to get a slot."""
        if self._slots.free > 0:
            return 0
        shelves = [self._shelves.get(adapter) for adapter in (None, *self._slots.loaded)]
        others = sum(len(shelf) for shelf in shelves if shelf is not None)
        return len(self._prompts) - len(self._parked) - others

    def ready(self, prompt_id: str) -> bool:
        """Whether it waits and isn't set aside."""
        return prompt_id in self._prompts and prompt_id not in self._parked

    def older(self, than_s: float, *, long: bool) -> Generator[Prompt]:
        """Prompts of a class that arrived before `than_s` and may start, oldest first, lazily.

        Those preempted or to be fetched are left out: they go first anyway. Nobody leaves; while
        the iterator is open the same holds as for `draw`.
        """
        drawn: list[tuple[LazyHeap, Entry]] = []
        heads: list[tuple[float, str, LazyHeap]] = []

        def advance(heap: LazyHeap) -> None:
            first = heap.first()
            if first is not None and self._prompts[first].arrival_s < than_s:
                heapq.heappush(heads, (self._prompts[first].arrival_s, first, heap))

        try:
            for shelf in self._open_shelves():
                advance(shelf.by_arrival[long])
            while heads:
                _, prompt_id, heap = heapq.heappop(heads)
                prompt = self._prompts[prompt_id]
                _take(heap, prompt_id, drawn)
                first = prompt.resumed or prompt.loads
                if not first and self._slots.admits(prompt.adapter):
                    yield prompt
                advance(heap)
        finally:
            for heap, entry in drawn:
                heap.restore(entry)

    def holds(self, prompt: Prompt) -> bool:
        """Whether `draw` passes over it, with all of its kind."""
        held = self.hold_long and self._is_long(prompt.tokens)
        return held or not self._slots.admits(prompt.adapter)

    def draw(self, now_s: float, rank: RankFn) -> Generator[tuple[Rank, Prompt]]:
        """Prompts with their rank, lowest first, lazily. Those not discarded meanwhile stay.

        `rank` must agree with the order within each lane.
        Until the iterator is exhausted or closed, only `discard`, `start`, `park` and `add` of
        prompts that were here may be called. It passes over those it has not yielded by then.
        """
        drawn: list[tuple[LazyHeap, Entry]] = []
        heads: list[Head] = []
        self._moves, self._came = min(MAX_MOVES, MOVES + 2 * self._came), 0
        try:
            for shelf in self._open_shelves():
                for lane in list(shelf.lanes):
                    self._advance(shelf, lane, heads, drawn, now_s, rank)
            while heads:
                standing, lane, prompt, taken = heapq.heappop(heads)
                if self.holds(prompt):
                    continue
                own = self._shelves.get(prompt.adapter)
                if own is None:
                    continue
                if self._prompts.get(prompt.id) is prompt and self.ready(prompt.id):
                    if not taken:
                        _take(own.lanes[lane], prompt.id, drawn)
                    yield standing, prompt
                if not taken:
                    self._advance(own, lane, heads, drawn, now_s, rank)
        finally:
            for heap, entry in drawn:
                heap.restore(entry)

    def has_long(self) -> bool:
        """Whether a long prompt waits."""
        return any(lane[LONG] for shelf in self._open_shelves() for lane in shelf.lanes)

    def has_yielding(self) -> bool:
        """Whether a prompt waits that was of the class going last when it was last looked at."""
        return any(lane[YIELDING] for shelf in self._open_shelves() for lane in shelf.lanes)

    def yielding(self, now_s: float) -> set[bool]:
        """Of which kinds, long or not, the first of a lane is one of those going last."""
        found = set[bool]()
        for shelf in self._open_shelves():
            for lane, heap in shelf.lanes.items():
                if lane[LONG] not in found:
                    head = heap.first()
                    late = head is not None and self._order.yielding(self._prompts[head], now_s)
                    if lane[YIELDING] or late:
                        found.add(lane[LONG])
        return found

    def long_head(self, now_s: float) -> Prompt | None:
        """The long prompt that would start next, or None."""
        firsts = [
            heap.first()
            for shelf in self._open_shelves()
            for lane, heap in shelf.lanes.items()
            if lane[LONG]
        ]
        prompts = [self._prompts[prompt_id] for prompt_id in firsts if prompt_id is not None]
        return min(prompts, key=lambda prompt: self.rank(prompt, now_s), default=None)

    def _open_shelves(self) -> Iterator[Shelf]:
        admits = self._slots.admits
        return (shelf for adapter, shelf in self._shelves.items() if admits(adapter))

    def _advance(
        self,
        shelf: Shelf,
        lane: Rank,
        heads: list[Head],
        drawn: list[tuple[LazyHeap, Entry]],
        now_s: float,
        rank: RankFn,
    ) -> None:
        """Put the lane's next prompt among the heads; move those whose lane changed.

        Thousands may turn late at once; those beyond so many move in later draws and
        until then keep what is behind them in their lane from being seen.
        """
        heap = shelf.lanes.get(lane)
        while heap is not None and (prompt_id := heap.first()) is not None:
            prompt = self._prompts[prompt_id]
            current = self._lane(prompt, now_s)
            if current == lane or self._moves == 0:
                heapq.heappush(heads, (rank(prompt), lane, prompt, False))
                return
            self._moves -= 1
            heap.take()
            drawn.append(shelf.lend(prompt, current, self._key(prompt, now_s)))
            heapq.heappush(heads, (rank(prompt), current, prompt, True))

    def _key(self, prompt: Prompt, now_s: float) -> Rank:
        if prompt.resumed or prompt.loads:
            return (prompt.arrival_s, prompt.id)
        return self._order.key(prompt, now_s)

    def _lane(self, prompt: Prompt, now_s: float) -> Rank:
        long = self._is_long(prompt.tokens)
        if prompt.resumed or prompt.loads:
            return (long, False, "first")
        return (long, *self._order.lane(prompt, now_s))


def _take(heap: LazyHeap, prompt_id: str, drawn: list[tuple[LazyHeap, Entry]]) -> None:
    """Take a prompt from its lane, and those that were drawn and came back before it."""
    while (entry := heap.take()) is not None:
        drawn.append((heap, entry))
        if entry[1] == prompt_id:
            return
