"""How many requests may be mid-prefill at once."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits on prompts that are unfinished after a step, whatever the reason.

    partial: all of them; long: those with more than `long_tokens` left.
    """

    partial: int
    long: int
    long_tokens: int

    def is_long(self, tokens: int) -> bool:
        """Whether a prompt with `tokens` uncached tokens to compute counts as long."""
        return tokens > self.long_tokens


@dataclass(slots=True)
class Occupancy:
    """Prompts that will be mid-prefill after the step being planned."""

    caps: Caps
    partial: int = 0
    long: int = 0

    def enter(self, tokens: int) -> None:
        """Count a prompt that is mid-prefill with `tokens` to compute."""
        self.partial += 1
        self.long += self.caps.is_long(tokens)

    def leave(self, tokens: int) -> None:
        """A prompt counted with `tokens` finishes in this step."""
        self.partial -= 1
        self.long -= self.caps.is_long(tokens)

    @property
    def full(self) -> bool:
        """No further prompt may be left unfinished."""
        return self.partial >= self.caps.partial

    @property
    def long_full(self) -> bool:
        """No further long prompt may be left unfinished."""
        return self.full or self.long >= self.caps.long

    def admits_partial(self, tokens: int, kept: Collection[bool] = ()) -> bool:
        """Whether a waiting prompt of `tokens` may start and not finish.

        kept: classes (whether of long prompts) that a place is to be left for.
        """
        partial, long = self.partial, self.long
        if kept:
            # None needs to be left for a long one while the cap on long ones keeps it waiting.
            partial += (False in kept) + (True in kept and long < self.caps.long)
            long += True in kept
        if partial >= self.caps.partial:
            return False
        return not self.caps.is_long(tokens) or long < self.caps.long
