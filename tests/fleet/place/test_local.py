"""Processes under a guard, one at a time; what supervisors make of them is in test_supervisor."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import traceback

import pytest

from headway import processes
from headway.engine.start.command import EngineCommand
from headway.fleet.place import local
from headway.fleet.place.local import Family, LocalEngine, any_ends, trim

pytestmark = pytest.mark.process

WAIT_S = 60.0
TREE = """
import os, signal, subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
{first}
print(os.environ.get("PROMETHEUS_MULTIPROC_DIR", "none"), below.pid, flush=True)
{then}
"""


def command(first="pass", then="time.sleep(600)"):
    return EngineCommand(
        argv=(sys.executable, "-c", TREE.format(first=first, then=then)),
        env=dict(os.environ),
        url=None,
        served_name="m",
        settings=None,
        drain_s=0.5,
    )


def lives(pid):
    return processes.parent_of(pid) is not None


def alone(work):
    """Run it in a process of its own, which nothing else is a child of."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.run(work())
            status = 0
        except BaseException:  # noqa: BLE001  it is shown, and the parent sees the status
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Run:
    def __init__(self, tmp_path, **more):
        self.log = tmp_path / "x.log"
        self.scratch = tmp_path / "scratch"
        self.scratch.mkdir(exist_ok=True)
        self.engine = LocalEngine(Family(), self.scratch, **more)

    async def start(self, what):
        await self.engine.start(what, self.log)

    async def said(self):
        async with asyncio.timeout(WAIT_S):
            while True:
                text = self.log.read_text()
                if text.endswith("\n"):
                    return text.split()
                await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(local, "FORCE_GRACE_S", 0.5)


def test_its_status_comes_when_nothing_of_it_is_left(tmp_path):
    async def run():
        engine = Run(tmp_path)
        await engine.start(command(then="sys.exit(7)"))
        scratch, below = await engine.said()
        assert scratch.startswith(str(engine.scratch))
        assert await engine.engine.wait() == 7
        assert not lives(int(below))
        assert list(engine.scratch.iterdir()) == []

    alone(run)


def test_the_router_has_no_folder_for_shared_metrics(tmp_path):
    async def run():
        engine = Run(tmp_path, metrics=False)
        await engine.start(command(then="pass"))
        assert (await engine.said())[0] == "none"
        await engine.engine.wait()

    alone(run)


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_a_stop_ends_all_of_it(tmp_path, stubborn, force):
    async def run():
        engine = Run(tmp_path)
        ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        await engine.start(command(first=ignores if stubborn else "pass"))
        _, below = await engine.said()
        engine.engine.stop(force=force)
        status = await asyncio.wait_for(engine.engine.wait(), WAIT_S)
        assert status in {128 + signal.SIGTERM, 128 + signal.SIGKILL}
        assert not lives(int(below))

    alone(run)


@pytest.mark.parametrize("force", [False, True])
def test_a_stop_before_the_start_counts(tmp_path, force):
    async def run():
        engine = Run(tmp_path)
        engine.engine.stop(force=force)
        await engine.start(command())
        pid = engine.engine.pid
        await asyncio.wait_for(engine.engine.wait(), WAIT_S)
        assert not lives(pid)

    alone(run)


@pytest.mark.parametrize("victim", ["guard", "server", "below"])
def test_the_end_of_a_part_is_noticed_at_once(tmp_path, victim):
    async def run():
        engine = Run(tmp_path)
        await engine.start(command())
        _, below = await engine.said()
        server, guard = engine.engine.server(), engine.engine.pid
        ended = asyncio.create_task(engine.engine.part_ended())
        await asyncio.sleep(0.1)
        assert not ended.done()
        os.kill({"guard": guard, "server": server, "below": int(below)}[victim], signal.SIGKILL)
        assert await asyncio.wait_for(ended, WAIT_S) is (victim != "below")
        engine.engine.stop(force=True)
        await asyncio.wait_for(engine.engine.wait(), WAIT_S)
        assert not [pid for pid in (guard, server, int(below)) if lives(pid)]

    alone(run)


def test_what_a_killed_guard_leaves_is_ended_before_the_engine_counts_as_gone(tmp_path):
    """Also a process that ignores being asked; another engine isn't touched."""

    async def run():
        family = Family()
        engine, other = Run(tmp_path), Run(tmp_path)
        other.log = tmp_path / "other.log"
        for each in (engine, other):
            each.engine = LocalEngine(family, each.scratch)
        await engine.start(command(first="signal.signal(signal.SIGTERM, signal.SIG_IGN)"))
        await other.start(command())
        _, below = await engine.said()
        _, untouched = await other.said()
        server = engine.engine.server()
        os.kill(engine.engine.pid, signal.SIGKILL)
        assert await asyncio.wait_for(engine.engine.wait(), WAIT_S) == 128 + signal.SIGKILL
        assert not [pid for pid in (server, int(below)) if lives(pid)]
        assert lives(int(untouched))
        other.engine.stop(force=True)
        await other.engine.wait()

    alone(run)


def test_a_command_that_cannot_be_run_leaves_nothing(tmp_path, monkeypatch):
    async def run():
        engine = Run(tmp_path)
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(OSError, match="/nowhere/python"):
            await engine.start(command())
        assert list(engine.scratch.iterdir()) == []

    alone(run)


def test_the_log_of_the_run_before_is_kept_and_a_large_one_is_begun_anew(tmp_path, monkeypatch):
    async def run():
        engine = Run(tmp_path)
        engine.log.write_text("before")
        go = tmp_path / "go"
        waits = f"while not os.path.exists({str(go)!r}): time.sleep(0.02)"
        await engine.start(command(then=f"{waits}\nprint('after'); sys.exit(0)"))
        await engine.said()
        assert engine.log.with_name("x.log.1").read_text() == "before"
        trim(engine.log)
        assert engine.log.read_text()
        monkeypatch.setattr(local, "LOG_BYTES", 3)
        trim(engine.log)
        assert engine.log.read_text() == ""
        go.touch()
        await engine.engine.wait()
        assert engine.log.read_text() == "after\n"

    alone(run)


def test_processes_that_have_ended_are_told_apart(tmp_path):
    async def run():
        one, two = (
            subprocess.Popen(  # noqa: ASYNC220  done at once
                [sys.executable, "-c", f"import time; time.sleep({seconds})"]
            )
            for seconds in (0.3, 600)
        )
        try:
            assert await asyncio.wait_for(any_ends([one.pid, two.pid]), WAIT_S) == {one.pid}
            one.wait()
            assert await asyncio.wait_for(any_ends([one.pid, two.pid]), WAIT_S) == {one.pid}
        finally:
            two.kill()
            two.wait()

    alone(run)


def test_all_of_an_engine_runs_on_its_cores(tmp_path):
    async def work():
        core = max(os.sched_getaffinity(0))
        run = Run(tmp_path)
        await run.start(dataclasses.replace(command(), cores=(core,)))
        _, below = await run.said()
        assert os.sched_getaffinity(int(below)) == {core}
        assert os.sched_getaffinity(0) == allowed
        run.engine.stop(force=True)
        await run.engine.wait()

    allowed = os.sched_getaffinity(0)
    alone(work)
