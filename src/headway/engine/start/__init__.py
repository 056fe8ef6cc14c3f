"""An engine as a process: its command, its guard, its launcher."""

from typing import Final

GUARD: Final = "headway.engine.start.guard"
"""The module that runs as the parent of every engine."""
