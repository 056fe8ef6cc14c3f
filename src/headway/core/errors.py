"""Errors that tell a user what was wrong and what would be right, and what scripts are told."""

from collections.abc import Mapping
from typing import Final

FAILED: Final = 1
WRONG: Final = 2
NOT_RUNNING: Final = 3
NOT_FOUND: Final = 4
INTERRUPTED: Final = 130
EXIT_STATUSES: Final[Mapping[int, str]] = {
    0: "done; a server that was told to stop has stopped",
    FAILED: "failed; the doctor found an error",
    WRONG: "the command line or the file is wrong, and nothing has changed",
    NOT_RUNNING: "no fleet of that name runs",
    NOT_FOUND: "there is no such engine, pool or log",
    INTERRUPTED: "interrupted",
}
"""What every command of `headway` ends with."""


class HeadwayError(Exception):
    """Base of every error headway raises on purpose. exit_status: what it ends a command with."""

    exit_status: int = FAILED


class SettingError(HeadwayError, ValueError):
    """A setting that can't be used.

    `key` is the full path of the setting (for example `headway.order`),
    so that a user can find it in a file, a flag or a JSON object.
    """

    exit_status = WRONG

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem
