"""The prompts that wait, in lanes."""

import heapq
from collections import deque
from collections.abc import Callable, Generator
from typing import Final

from headway.core.batching.order import Order, Rank
from headway.core.views import Probe, Prompt

Entry = tuple[Rank, int, str]
"""Key in the lane, a serial number that tells whether the entry still counts, the prompt's id."""
RankFn = Callable[[Prompt], Rank]
LONG: Final = 0
YIELDING: Final = 1
"""Where a lane says whether its prompts are long, and (first of the order's own) go last."""
MAX_MOVES: Final = 8
"""Prompts that may change their lane in one draw."""


class Backlog:
    """Waiting prompts; `draw` yields them in order without looking at all of them.

    Adding, discarding and drawing one prompt cost O(log n). Entries of discarded
    prompts stay in their heap until they come to its top.

    A prompt that can't start now (`park`) is out of the way of those behind it;
    `unpark` looks at a few parked ones each step, in turn.
    """

    def __init__(self, order: Order, is_long: Callable[[int], bool]) -> None:
        self._order = order
        self._is_long = is_long
        self._prompts: dict[str, Prompt] = {}
        self._serial = 0
        self._moves = 0
        self._serial_of: dict[str, int] = {}
        self._lanes: dict[Rank, list[Entry]] = {}
        self._by_arrival: list[tuple[float, str]] = []
        self._parked: deque[str] = deque()
        self._parked_ids: set[str] = set()
        self._roomless_since_s: dict[str, float] = {}
        self.hold_long = False
        """While set, `draw` passes over long prompts."""

    def __len__(self) -> int:
        return len(self._prompts)

    def __contains__(self, prompt_id: str) -> bool:
        return prompt_id in self._prompts

    def add(self, prompt: Prompt, now_s: float) -> None:
        """Take in a prompt, or replace the one of the same id."""
        if prompt.id not in self._prompts or prompt.id in self._parked_ids:
            heapq.heappush(self._by_arrival, (prompt.arrival_s, prompt.id))
        self._free(prompt.id)
        self._prompts[prompt.id] = prompt
        self._push(prompt, now_s)

    def discard(self, prompt_id: str) -> None:
        """Forget a prompt; unknown ids are ignored."""
        if self._prompts.pop(prompt_id, None) is not None:
            self._serial_of.pop(prompt_id, None)
            self._free(prompt_id)

    def rank(self, prompt: Prompt, now_s: float) -> Rank:
        """Lowest goes first: those preempted or to be fetched, by arrival; then the order."""
        if prompt.resumed or prompt.loads:
            return (False, prompt.arrival_s, prompt.id)
        return (True, *self._order.rank(prompt, now_s))

    def park(self, prompt_id: str, now_s: float, *, needs_room: bool) -> None:
        """Set a prompt aside that can't start now.

        needs_room: it could start if running requests finished and no other started.
        """
        self._serial_of.pop(prompt_id, None)
        if prompt_id not in self._parked_ids:
            self._parked_ids.add(prompt_id)
            self._parked.append(prompt_id)
        if needs_room:
            self._roomless_since_s.setdefault(prompt_id, now_s)
        else:
            self._roomless_since_s.pop(prompt_id, None)

    def _free(self, prompt_id: str) -> None:
        self._parked_ids.discard(prompt_id)
        self._roomless_since_s.pop(prompt_id, None)

    def unpark(
        self, probe: Callable[[str], Probe], fits: Callable[[Probe], bool], looks: int, now_s: float
    ) -> None:
        """Let those of the next `looks` parked prompts back in that can start now."""
        for _ in range(min(looks, len(self._parked))):
            prompt_id = self._parked.popleft()
            if prompt_id not in self._parked_ids:
                continue
            seen = probe(prompt_id)
            if seen.blocked is None and fits(seen):
                self.add(self._prompts[prompt_id], now_s)
            else:
                self._parked.append(prompt_id)
                self.park(prompt_id, now_s, needs_room=seen.needs_room)

    def roomless_since_s(self) -> float | None:
        """Since when the first of those set aside has needed room; None without any."""
        return next(iter(self._roomless_since_s.values()), None)

    def oldest(self) -> Prompt | None:
        """The prompt that arrived first of those not set aside."""
        heap = self._by_arrival
        while heap:
            arrival_s, prompt_id = heap[0]
            prompt = self._prompts.get(prompt_id)
            current = prompt is not None and prompt.arrival_s == arrival_s
            if current and prompt_id not in self._parked_ids:
                return prompt
            heapq.heappop(heap)
        return None

    def draw(self, now_s: float, rank: RankFn) -> Generator[tuple[Rank, Prompt]]:
        """Prompts with their rank, lowest first, lazily. Those not discarded meanwhile stay.

        `rank` must agree with the order within each lane.
        Until the iterator is exhausted or closed, only `discard`, `park` and
        `add` of prompts it has yielded may be called.
        """
        drawn: list[tuple[Rank, Entry]] = []
        heads: list[tuple[Rank, Rank, Prompt]] = []
        self._moves = MAX_MOVES
        try:
            for lane in list(self._lanes):
                self._advance(lane, heads, drawn, now_s, rank)
            while heads:
                standing, lane, prompt = heapq.heappop(heads)
                if not (self.hold_long and self._is_long(prompt.tokens)):
                    yield standing, prompt
                    self._advance(lane, heads, drawn, now_s, rank)
        finally:
            for lane, entry in drawn:
                if self._serial_of.get(entry[2]) == entry[1]:
                    heapq.heappush(self._lanes.setdefault(lane, []), entry)

    def has_long(self) -> bool:
        """Whether a long prompt waits."""
        return any(lane[LONG] and self._top(lane) for lane in list(self._lanes))

    def has_yielding(self) -> bool:
        """Whether a prompt waits that was of the class going last when it was last looked at."""
        return any(lane[YIELDING] and self._top(lane) for lane in list(self._lanes))

    def long_head(self, now_s: float) -> Prompt | None:
        """The long prompt that would start next, or None."""
        heads = [
            (self.rank(prompt, now_s), prompt)
            for lane in list(self._lanes)
            if lane[LONG] and (prompt := self._top(lane)) is not None
        ]
        return min(heads)[1] if heads else None

    def _advance(
        self,
        lane: Rank,
        heads: list[tuple[Rank, Rank, Prompt]],
        drawn: list[tuple[Rank, Entry]],
        now_s: float,
        rank: RankFn,
    ) -> None:
        """Put the lane's next prompt among the heads; move those whose lane changed.

        Thousands may turn late at once; those beyond `MAX_MOVES` move in later draws and
        until then keep what is behind them in their lane from being seen.
        """
        while (prompt := self._top(lane)) is not None:
            entry = heapq.heappop(self._lanes[lane])
            current = self._lane(prompt, now_s)
            if current == lane or self._moves == 0:
                drawn.append((lane, entry))
                heapq.heappush(heads, (rank(prompt), lane, prompt))
                return
            self._moves -= 1
            drawn.append((current, self._entry(prompt, now_s)))
            heapq.heappush(heads, (rank(prompt), current, prompt))

    def _top(self, lane: Rank) -> Prompt | None:
        heap = self._lanes.get(lane)
        while heap:
            _, serial, prompt_id = heap[0]
            if self._serial_of.get(prompt_id) == serial:
                return self._prompts[prompt_id]
            heapq.heappop(heap)
        self._lanes.pop(lane, None)
        return None

    def _push(self, prompt: Prompt, now_s: float) -> None:
        lane = self._lanes.setdefault(self._lane(prompt, now_s), [])
        heapq.heappush(lane, self._entry(prompt, now_s))

    def _entry(self, prompt: Prompt, now_s: float) -> Entry:
        """The prompt's entry in its lane; earlier ones no longer count."""
        self._serial += 1
        self._serial_of[prompt.id] = self._serial
        by_arrival = (prompt.arrival_s, prompt.id)
        first = prompt.resumed or prompt.loads
        key = by_arrival if first else self._order.key(prompt, now_s)
        return (key, self._serial, prompt.id)

    def _lane(self, prompt: Prompt, now_s: float) -> Rank:
        long = self._is_long(prompt.tokens)
        if prompt.resumed or prompt.loads:
            return (long, False, "first")
        return (long, *self._order.lane(prompt, now_s))
