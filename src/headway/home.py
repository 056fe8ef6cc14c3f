"""Where the user's files are."""

import os
from pathlib import Path

from headway.core.errors import HeadwayError


def home() -> Path:
    """The user's home directory. Raises HeadwayError for one without, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        raise HeadwayError(
            f"user {os.getuid()} has no home directory; set HOME to one that can be written"
        ) from None


def expanded(path: str) -> Path:
    """With a leading ~ or ~user replaced. Raises HeadwayError where that has no home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise HeadwayError(
            f"{path}: ~ stands for no directory here; set HOME, or write the path in full"
        ) from None
