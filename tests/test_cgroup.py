"""Cores and memory as control groups leave them, from made-up trees of /sys/fs/cgroup."""

import math

import pytest

from headway import cgroup

GIB = 2**30


@pytest.fixture
def tree(tmp_path):
    """Writes files below a made-up /sys/fs/cgroup; gives what to call with."""

    def make(own, **files):
        (tmp_path / "own").write_text(own)
        (tmp_path / "root").mkdir()
        for name, text in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {"root": tmp_path / "root", "own": tmp_path / "own"}

    return make


def test_without_control_groups_there_is_no_limit(tree):
    made = tree("")
    assert (cgroup.cores(**made), cgroup.free_bytes(**made)) == (math.inf, math.inf)


def test_a_container_has_the_cores_of_its_quota(tree):
    made = tree("0::/\n", **{"cpu.max": "200000 100000\n"})
    assert cgroup.cores(**made) == 2


@pytest.mark.parametrize("text", ["max 100000\n", "", "x", "200000", "200000 0", "-1 100000"])
def test_a_quota_that_is_none_is_none(tree, text):
    assert cgroup.cores(**tree("0::/\n", **{"cpu.max": text})) == math.inf


def test_the_tightest_group_above_counts(tree):
    files = {
        "cpu.max": "max 100000\n",
        "a/cpu.max": "150000 100000\n",
        "a/b/cpu.max": "400000 100000\n",
        "a/memory.max": f"{4 * GIB}\n",
        "a/memory.current": f"{3 * GIB}\n",
        "a/b/memory.max": f"{8 * GIB}\n",
        "a/b/memory.current": f"{GIB}\n",
    }
    made = tree("0::/a/b\n", **files)
    assert cgroup.cores(**made) == 1.5
    assert cgroup.free_bytes(**made) == GIB


def test_a_host_s_path_that_is_not_visible_here_is_the_root(tree):
    made = tree("0::/kubepods/pod1/x\n", **{"cpu.max": "100000 100000\n"})
    assert cgroup.cores(**made) == 1


def test_page_cache_does_not_count_as_used(tree):
    files = {
        "memory.max": f"{4 * GIB}\n",
        "memory.current": f"{3 * GIB}\n",
        "memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}\nshmem 5\n",
    }
    assert cgroup.free_bytes(**tree("0::/\n", **files)) == 2.5 * GIB


def test_version_1_is_read_too(tree):
    own = "12:memory:/docker/x\n11:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n"
    files = {
        "cpu,cpuacct/docker/x/cpu.cfs_quota_us": "250000\n",
        "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "memory/docker/x/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/docker/x/memory.usage_in_bytes": f"{GIB}\n",
        "memory/docker/x/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": "5\n",
    }
    made = tree(own, **files)
    assert cgroup.cores(**made) == 2.5
    assert cgroup.free_bytes(**made) == 1.5 * GIB


@pytest.mark.parametrize(
    ("worth", "cores"), [(math.inf, 4), (64.0, 4), (2.0, 2), (1.5, 2), (0.2, 1)]
)
def test_an_engine_is_given_no_more_cores_than_there_is_time_for(monkeypatch, worth, cores):
    from headway.engine.start import command

    monkeypatch.setattr(command.os, "sched_getaffinity", lambda _: {3, 0, 1, 2})
    monkeypatch.setattr(command.cgroup, "cores", lambda: worth)
    assert command.usable_cores() == tuple(range(cores))
