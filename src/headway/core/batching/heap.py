"""A heap whose entries may be withdrawn."""

import heapq
from typing import Any, Final

Key = tuple[Any, ...]
Entry = tuple[Key, str]
SLACK: Final = 32
"""Entries beyond those that count which are kept at any size."""


class LazyHeap:
    """Ids by key, lowest first; each id once.

    All operations cost O(log n), amortised. Entries of ids that were discarded or
    pushed again stay until they come to the top, and never outnumber the others
    by more than `SLACK`.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._key_of: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._key_of)

    def push(self, item_id: str, key: Key) -> None:
        """Take in an id, or give it another key."""
        self.lend(item_id, key)
        heapq.heappush(self._entries, (key, item_id))
        self._compact()

    def discard(self, item_id: str) -> None:
        """Forget an id; unknown ids are ignored."""
        if self._key_of.pop(item_id, None) is not None:
            self._compact()

    def first(self) -> str | None:
        """The id with the lowest key."""
        entries, key_of = self._entries, self._key_of
        while entries:
            key, item_id = entries[0]
            if key_of.get(item_id) is key:
                return item_id
            heapq.heappop(entries)
        return None

    def take(self) -> Entry | None:
        """Remove the lowest entry for a while; `restore` puts it back."""
        return None if self.first() is None else heapq.heappop(self._entries)

    def lend(self, item_id: str, key: Key) -> Entry:
        """Take in an id as if its entry had been taken."""
        self._key_of[item_id] = key
        return (key, item_id)

    def restore(self, entry: Entry) -> None:
        """Put back an entry that was taken, unless its id was discarded or pushed since."""
        if self._counts(entry):
            heapq.heappush(self._entries, entry)

    def _counts(self, entry: Entry) -> bool:
        return self._key_of.get(entry[1]) is entry[0]

    def _compact(self) -> None:
        if len(self._entries) > 2 * len(self._key_of) + SLACK:
            self._entries = [entry for entry in self._entries if self._counts(entry)]
            heapq.heapify(self._entries)
