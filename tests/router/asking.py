"""Terms on which tests' requests are served."""

from headway.core.client_range import ClientRange
from headway.router.openai import Terms

FREELY = Terms(ClientRange("*", priority=(-(2**63), 2**63 - 1)))
"""All that engines take."""
