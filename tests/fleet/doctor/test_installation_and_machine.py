"""Findings about the installation and the machine."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fleet.doctor.examining import CPU, facts, severities

from headway.core.engine_metrics import Fallback
from headway.core.reports import Finding
from headway.engine import compat
from headway.fleet.doctor import installation, machine
from headway.fleet.doctor.engines import of_engine
from headway.fleet.doctor.finding import report, summary, tell
from headway.fleet.plan.spec import EngineSpec, Machine

GPUS = Machine(cores=(0,), gpus=(0, 1, 2, 3), memory_gib=64.0, cpu=False)

TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tSYS\tPIX\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tNODE\tSYS\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tPIX\tSYS\t32-63\t1\t\tN/A
GPU3\tSYS\tNODE\tPIX\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""
UCX = """\
# Memory domain: self
#     Component: self
#      Transport: self
#         Device: memory
#      Transport: {}
"""


def spec(**changes):
    values = {"name": "a-0", "pool": "a", "role": "both", "model": None, "devices": (0,)}
    return EngineSpec(**(values | changes))


# What is told


@pytest.mark.parametrize(
    ("fallback", "severity"),
    [(Fallback(), None), (Fallback(3), "warning"), (Fallback(9, aside=True), "error")],
)
def test_faults_of_headways_scheduler_are_told(fallback, severity):
    found = [each for each in of_engine(facts(fallback=fallback)) if each.severity != "ok"]
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert all("traceback" in each.then and "headway's scheduler" in each.what for each in found)


@given(
    st.lists(
        st.builds(
            Finding,
            st.sampled_from(["ok", "note", "warning", "error"]),
            st.sampled_from(["a", "b"]),
            st.just("what"),
            st.sampled_from(["", "then"]),
        )
    )
)
def test_every_finding_is_told_below_its_heading_with_its_next_step(findings):
    lines = list(tell(findings))
    heading, told = "", []
    for line in lines:
        if not line.startswith(" "):
            heading = line
        elif "next:" not in line:
            told.append((line.split()[0], heading))
    assert told == [(f.severity, f.about) for f in findings]
    assert sum("next: then" in line for line in lines) == sum(bool(f.then) for f in findings)
    said = summary(report(findings))
    for name in ("error", "warning"):
        count = sum(f.severity == name for f in findings)
        assert (f"{count} {name}" in said) == (count > 0)


# The installation


def test_a_supported_vllm_with_its_connector_is_fine():
    said = {"version": "0.32.0+cpu", "supported": ["0.32"]}
    assert severities(installation.of_vllm(said, cpu=True, splits=True)) == ["ok", "ok"]


def test_another_vllm_is_a_warning_as_long_as_its_interface_fits():
    untested = compat.untested("0.34.0")
    said = {"version": "0.34.0", "supported": ["0.32"], "untested": untested}
    first, _ = installation.of_vllm(said, cpu=False, splits=False)
    assert first.severity == "warning"
    assert first.what == untested
    assert "use vLLM 0.32" in first.then


def test_a_vllm_that_differs_is_an_error_that_names_the_difference():
    said = {"version": "0.32.0", "supported": ["0.32"], "problem": "Scheduler has no schedule()"}
    first, _ = installation.of_vllm(said, cpu=False, splits=False)
    assert first.severity == "error"
    assert "Scheduler has no schedule()" in first.what


def test_a_missing_connector_matters_where_kv_is_to_move():
    said = {"version": "0.32.0", "supported": ["0.32"], "connector": "No module named 'nixl'"}
    for splits, severity in ((True, "error"), (False, "note")):
        found = list(installation.of_vllm(said, cpu=True, splits=splits))
        assert severities(found) == ["ok", severity]
        assert "No module named 'nixl'" in found[1].what


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print('noise'); print('{\"version\": \"1\"}')", {"version": "1"}),
        ("import sys; sys.exit('no room')", "ended with status 1: no room"),
        ("print('[]')", "ended with status 0"),
        ("import time; time.sleep(600)", "took more than"),
    ],
)
def test_looking_at_vllm_survives_whatever_importing_it_does(monkeypatch, script, said):
    monkeypatch.setattr(installation, "_LOOK", script)
    monkeypatch.setattr(installation, "_TIMEOUT_S", 1.0 if "sleep" in script else 60.0)
    found = installation.describe_vllm()
    assert found == said or said in found["problem"]


# The machine


def test_small_shared_memory_is_a_warning():
    assert machine.shared_memory(64 << 20).severity == "warning"
    assert machine.shared_memory(8 << 30).severity == "ok"
    assert machine.free_shared_memory("/nowhere/at/all") is None


def test_engines_that_don_t_fit_the_memory_are_a_warning(tmp_path):
    engines = [spec(kv_memory_gib=2.0), spec(kv_memory_gib=2.0)]
    assert severities(machine.memory(engines, CPU)) == ["ok"]
    assert severities(machine.memory(engines * 3, CPU)) == ["warning"]
    assert severities(machine.memory(engines * 3, GPUS)) == []
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(20 << 30)  # holes: no space is taken
    local = [spec(model=str(tmp_path), kv_memory_gib=1.0)]
    assert severities(machine.memory(local, CPU)) == ["warning"]


def test_a_port_that_is_taken_is_an_error_that_names_its_setting():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        number = held.getsockname()[1]
        found = machine.port("127.0.0.1", number, "router.port")
        assert found.severity == "error"
        assert f"router.port: can't listen on 127.0.0.1 port {number}" in found.what
    assert machine.port("127.0.0.1", number, "router.port").severity == "ok"


def test_the_topology_s_links_are_read_both_ways_round():
    links = machine.parse_topology(TOPOLOGY)
    assert links == {
        (0, 1): "NV12",
        (0, 2): "SYS",
        (0, 3): "SYS",
        (1, 2): "SYS",
        (1, 3): "NODE",
        (2, 3): "PIX",
    }


@given(st.text())
def test_any_other_answer_has_no_links(text):
    assert machine.parse_topology(text) == {}


@pytest.mark.parametrize(
    ("devices", "severity"),
    [((0, 1), ["ok"]), ((2, 3), []), ((0, 2), ["warning"]), ((0,), []), ((0, 9), [])],
)
def test_engines_across_cpu_sockets_are_warned_of(devices, severity):
    links = machine.parse_topology(TOPOLOGY)
    found = list(machine.links_within([spec(devices=devices)], links))
    assert severities(found) == severity
    if severity == ["warning"]:
        assert "GPUs 0 and 2" in found[0].what


@pytest.mark.parametrize(
    ("said", "severity"),
    [
        (None, ["note"]),
        (UCX.format("tcp"), ["warning", "note"]),
        (UCX.format("cuda_copy"), ["note"]),
        (UCX.format("cuda_ipc") + "#      Transport: rc_mlx5\n", ["ok"]),
    ],
)
def test_what_ucx_can_use_is_told(said, severity):
    assert severities(machine.transports(said)) == severity


def test_a_gpu_build_without_a_gpu_is_an_error():
    none = Machine(cores=(0,), gpus=(), memory_gib=1.0, cpu=False)
    assert severities(machine.gpus([], none)) == ["error"]
    assert severities(machine.gpus([], CPU)) == []
