"""Finds tests that start processes and aren't marked `process` or `e2e`; such a test fails.

Python tells of most ways to start one by audit events. The others are wrapped.
"""

import functools
import multiprocessing.process
import os
import sys
import sysconfig
from pathlib import Path

import pytest
import uvloop

_ROOT = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{_ROOT / name}{os.sep}" for name in ("src", "tests", "scripts", "benchmarks"))
_STANDARD = (f"{sysconfig.get_path('stdlib')}{os.sep}", "<")
_EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"})
_WITHOUT_EVENT = (
    (uvloop.Loop, "subprocess_exec"),  # libuv starts it
    (uvloop.Loop, "subprocess_shell"),
    (multiprocessing.process.BaseProcess, "start"),
)

started = []
"""How the test that runs now has started processes; its fixtures' are among them."""


def _by_a_library():
    """Whether a package that is installed asked for it: vLLM's registry does, where its cache is
    empty, and so does whoever asks `platform` for the first time.
    """
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file == __file__:
            pass
        elif file.startswith(_OURS):
            return False
        elif not file.startswith(_STANDARD) or "site-packages" in file:
            return True
        frame = frame.f_back
    return True


def _note(how):
    if not _by_a_library():
        started.append(how)


def _on_event(event, arguments):
    if event in _EVENTS:
        _note(f"{event}: {arguments[0] if arguments else ''}")


def _wrap(owner, name):
    original = getattr(owner, name)

    @functools.wraps(original)
    def noting(*args, **kwargs):
        _note(f"{owner.__name__}.{name}")
        return original(*args, **kwargs)

    setattr(owner, name, noting)


sys.addaudithook(_on_event)
for owner, name in _WITHOUT_EVENT:
    _wrap(owner, name)


# The first to set up and the last to tear down: what fixtures start counts, of every scope.


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    started.clear()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    marked = any(item.get_closest_marker(name) for name in ("process", "e2e"))
    assert marked or not started, f"mark it `process`; it started {started[0]}"
