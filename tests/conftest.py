"""Settings that all tests share."""

import os

from hypothesis import HealthCheck, settings

# Tests name models of a hub that isn't asked: whether it may be is none of their business.
for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.pop(name, None)

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# The same examples on every run; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile(
    "steady", derandomize=True, deadline=None, max_examples=60, suppress_health_check=SLOW
)
settings.register_profile("explore", deadline=None, max_examples=1_000, suppress_health_check=SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
