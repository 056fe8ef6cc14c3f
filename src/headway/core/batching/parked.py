"""Prompts that can't start now, by what they wait for."""

from collections import OrderedDict
from collections.abc import Iterator

from headway.core.batching.heap import LazyHeap
from headway.core.views import Prompt


class Parked:
    """Prompts set aside: those that lack room, and those that something else blocks.

    Those that lack room wait in classes of need (KV blocks, within a power of two).
    In a class they start in order of arrival (first those preempted, then by priority), so
    only the first of each is looked at.
    Those blocked for the same reason are looked at in turn: no order says who is ready first.
    """

    def __init__(self) -> None:
        self._roomless: dict[int, LazyHeap] = {}
        self._class_of: dict[str, int] = {}
        self._since_s: OrderedDict[str, float] = OrderedDict()
        self._blocked: dict[str, OrderedDict[str, None]] = {}
        self._reason_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._class_of) + len(self._reason_of)

    def __contains__(self, prompt_id: str) -> bool:
        return prompt_id in self._class_of or prompt_id in self._reason_of

    def lacks_room(self, prompt: Prompt, blocks: int, now_s: float) -> None:
        """It could start if running requests finished and no other started."""
        self._leave_reason(prompt.id)
        needs = blocks.bit_length()
        if self._class_of.get(prompt.id) == needs:
            return
        if prompt.id in self._class_of:
            self._leave_class(prompt.id)
        self._class_of[prompt.id] = needs
        self._since_s.setdefault(prompt.id, now_s)
        queue = self._roomless.setdefault(needs, LazyHeap())
        key = (not prompt.resumed, prompt.priority, prompt.arrival_s, prompt.id)
        queue.push(prompt.id, key)

    def block(self, prompt_id: str, reason: str) -> None:
        """Something else than room is missing. It is looked at after others of that reason."""
        self.forget(prompt_id)
        self._reason_of[prompt_id] = reason
        self._blocked.setdefault(reason, OrderedDict())[prompt_id] = None

    def free(self, prompt_id: str) -> None:
        """It is set aside no longer; unknown ids are ignored."""
        self._leave_reason(prompt_id)
        if prompt_id in self._class_of:
            self._leave_class(prompt_id)

    def forget(self, prompt_id: str) -> None:
        """It waits no longer, or not for room: nor is it remembered since when it lacked that."""
        self.free(prompt_id)
        self._since_s.pop(prompt_id, None)

    def roomless(self) -> list[LazyHeap]:
        """The classes of those that lack room, smallest need first."""
        return [self._roomless[needs] for needs in sorted(self._roomless)]

    def reasons(self) -> list[str]:
        """Why prompts are blocked, each reason once."""
        return list(self._blocked)

    def blocked(self, reason: str) -> Iterator[str]:
        """Those blocked by it, each once, in turn; `block` or `free` each before the next."""
        for _ in range(len(self._blocked[reason])):
            yield next(iter(self._blocked[reason]))

    def longest_roomless(self) -> tuple[str, float] | None:
        """Who found no room first and hasn't started since, and when that was."""
        return next(iter(self._since_s.items()), None)

    def _leave_reason(self, prompt_id: str) -> None:
        reason = self._reason_of.pop(prompt_id, None)
        if reason is not None:
            del self._blocked[reason][prompt_id]
            if not self._blocked[reason]:
                del self._blocked[reason]

    def _leave_class(self, prompt_id: str) -> None:
        needs = self._class_of.pop(prompt_id)
        queue = self._roomless[needs]
        queue.discard(prompt_id)
        if not queue:
            del self._roomless[needs]
