import os

import pytest

from headway.fleet.plan import machine

LISTING = "0, GPU-aa11\n1, GPU-aa22\n2, GPU-bb33\n"
MEMINFO = "MemTotal:       24684092 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n"


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("2,0", (2, 0)),
        (" 1 , 2 ", (1, 2)),
        ("GPU-bb33,0", (2, 0)),
        ("GPU-bb", (2,)),
        ("GPU-aa", ()),  # which of them?
        ("1,7,0", (1,)),  # CUDA stops at one that isn't there
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1,1", (1,)),
    ],
)
def test_gpus_that_may_be_used(visible, gpus):
    assert machine.visible_gpus(LISTING, visible) == gpus


@pytest.mark.parametrize("listing", ["", "No devices were found\n", "0\n"])
def test_no_gpus(listing):
    assert machine.visible_gpus(listing, None) == ()


@pytest.mark.parametrize(
    ("limit", "used", "gib"),
    [
        ("", "", 4.0),
        ("max\n", "123\n", 4.0),
        (f"{3 * 2**30}\n", f"{2**30}\n", 2.0),
        (f"{2**30}", f"{2**31}", 0.0),
        (f"{64 * 2**30}", "0", 4.0),
    ],
)
def test_memory_is_what_is_available_within_the_control_group(limit, used, gib):
    assert machine.available_gib(MEMINFO, limit, used) == gib


def test_memory_that_is_not_known_is_none():
    assert machine.available_gib("") == 0.0


@pytest.mark.process
def test_this_machine_is_seen(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    found = machine.detect()
    assert set(found.cores) == os.sched_getaffinity(0)
    assert found.gpus == ()
    assert found.memory_gib > 0
