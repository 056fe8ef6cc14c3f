"""Settings that all tests share."""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

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

_started: list[str] = []
"""Processes that the test of now has started, by what started them."""


_OURS = ("python", "headway", "nginx", "curl", "git", "bash", "make")
"""What tests start. Libraries start others, once: `platform` asks uname."""


def _note(event: str, arguments: tuple) -> None:
    if event == "os.fork":
        _started.append(event)
    elif event in {"subprocess.Popen", "os.posix_spawn"}:
        name = os.path.basename(os.fsdecode(arguments[0]))  # noqa: PTH119  it may be bytes
        if name.startswith(_OURS):
            _started.append(f"{event}: {name}")


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def _processes_are_marked(request):
    """A test that starts processes says so: it is slow, and may leave one behind."""
    _started.clear()
    yield
    marked = any(request.node.get_closest_marker(name) for name in ("process", "e2e"))
    assert marked or not _started, f"mark it `process`; it started {_started[0]}"
