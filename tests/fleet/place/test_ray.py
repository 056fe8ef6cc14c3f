"""A fleet on a Ray cluster of two nodes: landing, moving, operating, and every way of ending."""

import contextlib
import http.client
import json
import os
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.fleet.ray_cluster import HEAD, OTHER, WITH_GPU, installed, two_nodes
from tests.fleet.running import Fleet, Traffic, eventually, lives
from tests.testing.ports import held_port

from headway import processes
from headway.fleet.place.ray_nodes import carried, too_small
from headway.fleet.plan.spec import EngineSpec

pytest.importorskip("uvloop", reason="the router runs on it")

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not installed(), reason="Ray is an extra; make test installs it"),
]
TWO = {"all": ["both", 2]}


@pytest.fixture(scope="module")
def cluster():
    with two_nodes() as made:
        yield made


@pytest.fixture
def fleet(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = []
    # Engines on other loopback addresses may have any port that is free there.
    admin = held_port()

    def make(pools=TWO, *, apart=False, **more):
        """apart: of two engines one lands on each node."""
        router = {"admin_port": admin.number}
        made.append(Fleet(tmp_path, pools, ray_address=cluster.address, router=router, **more))
        with cluster.one_core_less(HEAD) if apart else contextlib.nullcontext():
            made[-1].start()
            made[-1].until_serving()
        return made[-1]

    yield make
    for one in made:
        agents = one.pids() and agents_of(one)
        one.clean()
        one.nothing_left(agents)
    admin.release()


def host_of(fleet, name):
    return urlsplit(fleet.engine(name)["url"]).hostname


def names_by_host(fleet):
    return {urlsplit(e["url"]).hostname: e["name"] for e in fleet.status()["engines"]}


def agents_of(fleet, name=None):
    """The guards and the agents above the engines' servers."""
    guards = [processes.parent_of(pid) for pid in fleet.pids(name, "server")]
    agents = [processes.parent_of(pid) for pid in guards if pid is not None]
    return {pid for pid in (*guards, *agents) if pid not in {None, 1}}


def log_of(fleet, name):
    return Path(fleet.engine(name)["log"]).read_text()


def answered_by(fleet, name):
    return eventually(lambda: fleet.post() == (200, name), f"an answer of {name}")


def test_engines_land_on_both_nodes_write_their_logs_here_and_leave_nothing(fleet):
    running = fleet(apart=True)
    assert names_by_host(running).keys() == {HEAD, OTHER}
    for engine in running.status()["engines"]:
        answered_by(running, engine["name"])
        place = urlsplit(engine["url"]).netloc
        eventually(lambda e=engine, p=place: f"it listens on {p}" in log_of(running, e["name"]))
    parts = running.parts() | agents_of(running)
    running.ask("down")
    assert running.ended() == 0
    running.nothing_left(parts)


def test_a_crashed_engine_starts_again_where_it_was(fleet):
    running = fleet()
    before = running.engine("all-0")
    with Traffic(running) as traffic:
        eventually(lambda: len(traffic.answers) > 20)
        os.kill(running.pids("all-0", "server")[0], signal.SIGKILL)
        eventually(lambda: (e := running.engine("all-0"))["state"] == "ready" and e["restarts"])
        eventually(lambda: running.routed("all-0")["ready"])
        seen = len(traffic.answers)
        eventually(lambda: any(text == "all-0" for *_, text in traffic.answers[seen:]))
    assert traffic.failures() == []
    assert running.engine("all-0")["url"] == before["url"]


def test_scaling_and_a_rolling_restart_fail_no_request(fleet):
    running = fleet()
    with Traffic(running) as traffic:
        assert running.ask("scale", pool="all", replicas=3)["added"] == ["all-2"]
        running.until_serving()
        before = {e["name"]: e["url"] for e in running.status()["engines"]}
        servers = set(running.pids(role="server"))
        running.ask("restart", pool="all")
        assert not servers & set(running.pids(role="server"))
        assert {e["name"]: e["url"] for e in running.status()["engines"]} == before
        running.ask("scale", pool="all", replicas=1)
        eventually(lambda: len(running.status()["engines"]) == 1)
    assert traffic.failures() == []
    assert {text for *_, text in traffic.answers} == {"all-0", "all-1", "all-2"}


def test_nothing_is_left_of_a_killed_supervisor(fleet):
    running = fleet()
    parts = running.parts() | agents_of(running)
    os.kill(running.pid, signal.SIGKILL)
    assert running.ended() == -signal.SIGKILL
    running.nothing_left(parts)


def test_a_killed_agent_takes_its_engine_along_and_is_replaced(fleet):
    running = fleet()
    agent = processes.parent_of(processes.parent_of(running.pids("all-0", "server")[0]))
    parts = running.pids("all-0")
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: not any(lives(pid) for pid in parts))
    eventually(lambda: (e := running.engine("all-0"))["state"] == "ready" and e["restarts"])
    answered_by(running, "all-0")


def test_an_engine_larger_than_any_node_starts_and_is_left_to_vllms_executor(fleet, cluster):
    """A third node pretends to have one GPU."""
    cluster.add(WITH_GPU, cpus=0, gpus=1)
    try:
        cluster.until_up()
        running = fleet({"one": ["both", 1], "two": ["both", 1, 2]}, cpu=False)
        answered_by(running, "two-0")
        assert "spread, sees all GPUs" in log_of(running, "two-0")
        assert "spread" not in log_of(running, "one-0")
        assert names_by_host(running).keys() == {WITH_GPU}
    finally:
        cluster.kill(WITH_GPU)
        cluster.until_up()


def test_what_is_set_here_for_engines_goes_with_them():
    here = {"PATH": "/bin", "VLLM_API_KEY": "k", "HF_TOKEN": "t", "A": "1"}
    env = {**here, "A": "2", "B": "3"}
    assert carried(env, here) == {"VLLM_API_KEY": "k", "HF_TOKEN": "t", "A": "2", "B": "3"}


@pytest.mark.parametrize(
    ("size", "flags", "gpus", "start"),
    [
        (2, (), {"a": 2, "b": 1}, None),
        (3, (), {"a": 2, "b": 1}, "a"),
        (1, ("--distributed-executor-backend=ray",), {"a": 1, "b": 2}, "b"),
        (2, ("--distributed-executor-backend", "mp"), {"a": 2}, None),
        (2, (), {"a": 0}, None),
        (2, (), {}, None),
    ],
)
def test_an_engine_is_spread_only_where_no_node_has_its_gpus_or_it_is_asked(
    size, flags, gpus, start
):
    spec = EngineSpec(
        name="e-0",
        pool="e",
        role="both",
        model="m",
        devices=(),
        tensor_parallel_size=size,
        flags=flags,
    )
    nodes = [{"NodeID": n, "Alive": True, "Resources": {"GPU": g}} for n, g in gpus.items()]
    dead = {"NodeID": "dead", "Alive": False, "Resources": {"GPU": 8}}
    assert too_small(spec, [*nodes, dead]) == start


def test_without_a_cluster_the_fleet_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    running = Fleet(tmp_path, ray_address="127.0.0.1:1")
    try:
        running.start()
        assert running.ended() == 1
    finally:
        running.clean()
    assert "no Ray cluster at '127.0.0.1:1'" in running.said[-1]


class Stream:
    """A streamed completion that has got its first byte. name: of the engine that sends it."""

    def __init__(self, fleet):
        body = json.dumps({"model": "m", "prompt": "hi", "stream": True}).encode()
        url = f"http://127.0.0.1:{fleet.spec['router']['port']}/v1/completions"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        self._answer = urllib.request.urlopen(request, timeout=60)
        first = self._answer.readline().decode().removeprefix("data: ")
        self.name = json.loads(first)["choices"][0]["text"]

    def whole(self):
        with self._answer:
            try:
                return self._answer.read().strip().endswith(b"[DONE]")
            except (OSError, http.client.HTTPException):
                return False


def test_a_node_dies_under_traffic(fleet, cluster):
    """Only what it had begun to answer fails, and its engine comes back on the other node.

    The last test: the node stays dead.
    """
    running = fleet(apart=True)
    names = names_by_host(running)
    lost, kept = names[OTHER], names[HEAD]
    before = running.engine(lost)
    untouched = running.pids(kept)
    for name in (kept, lost):
        running.behave(name, answer_s=0.05, holds="streams")
    with ThreadPoolExecutor(8) as pool:
        streams = list(pool.map(lambda _: Stream(running), range(8)))
    assert {stream.name for stream in streams} == {kept, lost}
    with Traffic(running) as traffic, ThreadPoolExecutor(8) as pool:
        wholes = pool.map(Stream.whole, streams)
        eventually(lambda: {text for *_, text in traffic.answers} == {kept, lost})
        cluster.kill(OTHER, also={*running.pids(lost), *agents_of(running, lost)})
        running.behave(kept, answer_s=0.05)
        assert {(s.name, whole) for s, whole in zip(streams, wholes, strict=True)} == {
            (kept, True),
            (lost, False),
        }
        eventually(lambda: (e := running.engine(lost))["state"] == "ready" and e["restarts"])
        eventually(lambda: running.routed(lost)["ready"])
        seen = len(traffic.answers)
        eventually(lambda: any(text == lost for *_, text in traffic.answers[seen:]))
    after = running.engine(lost)
    assert traffic.failures() == []
    assert urlsplit(after["url"]).hostname == HEAD
    assert after["url"] != before["url"]
    assert "nothing is heard from its node any more" in "\n".join(running.said)
    assert running.pids(kept) == untouched
