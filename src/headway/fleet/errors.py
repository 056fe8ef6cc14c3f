"""What can't be done with a fleet."""

from headway.core.errors import NOT_FOUND, NOT_RUNNING, HeadwayError


class FleetError(HeadwayError):
    """Something a fleet can't do; the message says what was wrong and what would be right."""


class NotRunningError(FleetError):
    """No fleet of that name runs."""

    exit_status = NOT_RUNNING


class NotFoundError(FleetError):
    """A fleet has no engine, pool or log of that name."""

    exit_status = NOT_FOUND
