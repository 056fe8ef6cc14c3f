"""A test that starts a process in any way is noticed, and fails unless it is marked."""

import asyncio
import multiprocessing
import os
import pty
import subprocess
from types import SimpleNamespace

import pytest
import uvloop
from tests.testing import process_marks


async def exec_true():
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()


async def shell_true():
    process = await asyncio.create_subprocess_shell("true")
    await process.wait()


def fork(how):
    pid = how()
    pid = pid if isinstance(pid, int) else pid[0]
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


def spawn():
    process = multiprocessing.get_context("spawn").Process(target=len, args=("",))
    process.start()
    process.join()


WAYS = {
    "subprocess": lambda: subprocess.run(["true"], check=True),
    "asyncio": lambda: asyncio.run(exec_true()),
    "uvloop": lambda: uvloop.run(exec_true()),
    "uvloop's shell": lambda: uvloop.run(shell_true()),
    "fork": lambda: fork(os.fork),
    "forkpty": lambda: fork(pty.fork),
    "system": lambda: os.system("true"),  # noqa: S605
    "popen": lambda: os.popen("true").close(),  # noqa: S605
    "spawn": lambda: os.spawnv(os.P_WAIT, "/bin/true", ["true"]),  # noqa: S606
    "posix_spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    "multiprocessing": spawn,
}


@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_start_a_process_is_noticed(way):
    assert not process_marks.started
    WAYS[way]()
    assert process_marks.started


@pytest.fixture(scope="module")
def of_the_module():
    subprocess.run(["true"], check=True)


@pytest.mark.process
def test_what_a_fixture_of_any_scope_starts_is_the_tests(of_the_module):
    assert process_marks.started


@pytest.mark.parametrize(("marks", "fails"), [((), True), (("process",), False), (("e2e",), False)])
def test_one_that_is_not_marked_fails(marks, fails, monkeypatch):
    monkeypatch.setattr(process_marks, "started", ["subprocess.Popen: true"])
    item = SimpleNamespace(get_closest_marker=lambda name: name in marks)
    if fails:
        with pytest.raises(AssertionError, match="mark it `process`; it started subprocess"):
            process_marks.pytest_runtest_teardown(item)
    else:
        process_marks.pytest_runtest_teardown(item)
