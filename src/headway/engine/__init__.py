"""Headway inside a vLLM engine; the only package that imports vLLM."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.engine.scheduler import Scheduler

__all__ = ["Scheduler"]


def __getattr__(name: str) -> Any:
    """Import vLLM only when the scheduler is asked for: launching needs none of it."""
    if name == "Scheduler":
        from headway.engine.scheduler import Scheduler  # noqa: PLC0415  as the docstring says

        return Scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
