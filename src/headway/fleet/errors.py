"""What can't be done with a fleet."""

from headway.core.errors import HeadwayError


class FleetError(HeadwayError):
    """Something a fleet can't do; the message says what was wrong and what would be right."""
