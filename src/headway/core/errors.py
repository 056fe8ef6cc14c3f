"""Errors that tell a user what was wrong and what would be right."""


class HeadwayError(Exception):
    """Base of every error headway raises on purpose."""


class SettingError(HeadwayError, ValueError):
    """A setting that can't be used.

    `key` is the full path of the setting (for example `headway.order`),
    so that a user can find it in a file, a flag or a JSON object.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem
