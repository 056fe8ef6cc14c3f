"""The waiting prompts of one LoRA adapter."""

from headway.core.batching.heap import Entry, LazyHeap
from headway.core.batching.order import Rank
from headway.core.views import Prompt


class Shelf:
    """The prompts of one LoRA adapter, or of none, in lanes.

    since_s: since when prompts have waited here without any of them starting.
    """

    def __init__(self, now_s: float) -> None:
        self.since_s = now_s
        self.lanes: dict[Rank, LazyHeap] = {}
        self.by_arrival = {False: LazyHeap(), True: LazyHeap()}
        """By whether they are long, which is how their lane begins."""
        self._lane_of: dict[str, Rank] = {}

    def __len__(self) -> int:
        return len(self._lane_of)

    def put(self, prompt: Prompt, lane: Rank, key: Rank) -> None:
        """Take in a prompt, or give the one of the same id another place."""
        self._enter(prompt, lane).push(prompt.id, key)

    def lend(self, prompt: Prompt, lane: Rank, key: Rank) -> tuple[LazyHeap, Entry]:
        """The same, as if it had been taken from its lane."""
        heap = self._enter(prompt, lane)
        return heap, heap.lend(prompt.id, key)

    def discard(self, prompt_id: str) -> None:
        """Forget a prompt; unknown ids are ignored."""
        lane = self._lane_of.pop(prompt_id, None)
        if lane is not None:
            self.by_arrival[lane[0]].discard(prompt_id)
            self._leave(lane, prompt_id)

    def _enter(self, prompt: Prompt, lane: Rank) -> LazyHeap:
        before = self._lane_of.get(prompt.id)
        if before is not None and before != lane:
            self._leave(before, prompt.id)
        if before is None or before[0] != lane[0]:
            self.by_arrival[not lane[0]].discard(prompt.id)
            self.by_arrival[lane[0]].push(prompt.id, (prompt.arrival_s, prompt.id))
        self._lane_of[prompt.id] = lane
        return self.lanes.setdefault(lane, LazyHeap())

    def _leave(self, lane: Rank, prompt_id: str) -> None:
        self.lanes[lane].discard(prompt_id)
        if not self.lanes[lane]:
            del self.lanes[lane]
