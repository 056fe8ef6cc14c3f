"""Processes of a benchmark: started on a core, watched, ended for certain."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.bench.engines import processes


def test_cpu_time_of_another_process_is_that_of_its_own_clock() -> None:
    before = time.process_time()
    measured = processes.cpu_s([os.getpid()])
    assert before <= measured <= time.process_time()


@pytest.mark.process
def test_a_process_and_its_children_end_with_the_block() -> None:
    code = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'],"
        " stdin=subprocess.PIPE); print('up', flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", code]
    with (
        contextlib.suppress(ZeroDivisionError),
        processes.running(command, core=None, **pipes) as process,
    ):
        assert process.stdout.readline() == "up\n"
        pids = processes.tree(process.pid)
        1 / 0  # noqa: B018  an error in the block ends them as well
    assert len(pids) == 2
    assert process.returncode is not None
    deadline_s = time.monotonic() + 60
    while any(map(_runs, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    """Whether it lives; one that only waits to be reaped by init doesn't."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.process
def test_a_process_starts_on_the_core_it_is_given() -> None:
    core = min(os.sched_getaffinity(0))
    code = "import os; print(*os.sched_getaffinity(0))"
    allowed = os.sched_getaffinity(0)
    command = [sys.executable, "-c", code]
    with processes.running(command, core=core, stdout=subprocess.PIPE) as process:
        assert process.communicate()[0].split() == [str(core)]
    assert os.sched_getaffinity(0) == allowed


def test_free_ports_differ() -> None:
    assert len(set(processes.free_ports(5))) == 5
