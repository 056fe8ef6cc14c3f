"""Settings that all tests share."""

import os
import sys
import sysconfig
from pathlib import Path

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

_ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(f"{_ROOT / name}{os.sep}" for name in ("src", "tests", "scripts", "benchmarks"))
_STANDARD = (f"{sysconfig.get_path('stdlib')}{os.sep}", "<")
_started: list[str] = []
"""Processes that the test of now has started, by what started them."""


def _by_a_library() -> bool:
    """Whether a package that is installed asked for it: vLLM's registry does, where its cache is
    empty, and so does whoever asks `platform` for the first time.
    """
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OURS):
            return False
        if not file.startswith(_STANDARD) or "site-packages" in file:
            return True
        frame = frame.f_back
    return True


def _note(event: str, arguments: tuple) -> None:
    starts = event in {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"}
    if starts and not _by_a_library():
        _started.append(f"{event}: {arguments[0] if arguments else ''}")


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def _processes_are_marked(request):
    """A test that starts processes says so: it is slow, and may leave one behind."""
    _started.clear()
    yield
    marked = any(request.node.get_closest_marker(name) for name in ("process", "e2e"))
    assert marked or not _started, f"mark it `process`; it started {_started[0]}"
