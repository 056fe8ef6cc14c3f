"""Which LoRA adapters' prompts may start."""

from collections.abc import Collection


class AdapterSlots:
    """An engine computes with a limited number of adapters at once; each takes a slot.

    A prompt may start if it uses no adapter, one that is loaded, or a free slot.
    """

    def __init__(self) -> None:
        self.loaded: set[int] = set()
        self.free = 1
        self._next: int | None = None

    def begin(self, loaded: Collection[int], free: int, due: int | None) -> None:
        """The state at the start of a step.

        loaded: adapters of running requests; free: slots that none of them uses.
        due: an adapter without a slot that has waited too long. The next free slot is
            its own, and while there is none the loaded adapters start nothing, so that one
            comes to its end.
        """
        self.loaded = set(loaded)
        self.free = free
        self._next = due

    def is_loaded(self, adapter: int | None) -> bool:
        """Whether running requests use it; so counts using none."""
        return adapter is None or adapter in self.loaded

    def admits(self, adapter: int | None) -> bool:
        """Whether a prompt that uses it may start."""
        if adapter is None:
            return True
        if adapter in self.loaded:
            return self._next is None or self.free > 0
        return self.free > 0 and self._next in {None, adapter}

    def take(self, adapter: int | None) -> None:
        """A prompt that uses it starts."""
        if adapter is not None and adapter not in self.loaded:
            self.loaded.add(adapter)
            self.free -= 1
            self._next = None
