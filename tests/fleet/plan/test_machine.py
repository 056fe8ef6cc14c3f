import math
import os

import pytest

from headway.fleet.plan import machine

LISTING = "0, GPU-aa11\n1, GPU-aa22\n2, GPU-bb33\n"
MEMINFO = "MemTotal:       24684092 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n"


@pytest.mark.parametrize(("left", "gib"), [(math.inf, 4.0), (2**33, 4.0), (2**31, 2.0), (0, 0.0)])
def test_memory_is_what_is_available_within_the_control_group(left, gib):
    assert machine.available_gib(MEMINFO, left) == gib


def test_memory_that_is_not_known_is_none():
    assert machine.available_gib("") == 0.0


@pytest.mark.process
def test_this_machine_is_seen(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    found = machine.detect()
    assert found.cores
    assert set(found.cores) <= os.sched_getaffinity(0)
    assert found.gpus == ()
    assert found.memory_gib > 0
