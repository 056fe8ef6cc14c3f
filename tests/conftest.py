"""Settings that all tests share."""

import os

from hypothesis import HealthCheck, settings
from tests.testing.process_marks import (  # noqa: F401 - hooks, which pytest finds here
    pytest_runtest_setup,
    pytest_runtest_teardown,
)

# Tests name models of a hub that isn't asked: whether it may be is none of their business.
for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.pop(name, None)

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# The same examples on every run, a few of them in `make quick`; HYPOTHESIS_PROFILE=explore looks
# for new ones.
for profile, examples in (("steady", 60), ("quick", 10)):
    settings.register_profile(
        profile,
        derandomize=True,
        deadline=None,
        max_examples=examples,
        suppress_health_check=SLOW,
    )
settings.register_profile("explore", deadline=None, max_examples=1_000, suppress_health_check=SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
