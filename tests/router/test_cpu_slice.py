"""Short turns on the CPU are asked for where Linux knows them."""

import os
import subprocess
import sys

import pytest

from headway.router import cpu_slice

pytestmark = pytest.mark.process

ASKED = "from headway.router import cpu_slice as s; print(s.shorten(), s.of())"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_process_gets_short_turns_or_is_told_that_it_did_not():
    took, turn_ns = run(ASKED).split()
    assert (took == "True") == (int(turn_ns) == cpu_slice.TURN_NS)


def test_this_process_keeps_its_own():
    before = cpu_slice.of()
    run(ASKED)
    assert cpu_slice.of() == before


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")
def test_a_process_of_another_kind_is_left_alone():
    batch = "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); "
    assert run(batch + ASKED).startswith("False")
