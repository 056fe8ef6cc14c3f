"""A supervisor with fake engines and the real router: crashes, hangs, thieves, signals, ends."""

import contextlib
import os
import random
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.fleet.running import Fleet, Traffic, eventually, lives

from headway import processes
from headway.core.errors import NOT_FOUND
from headway.fleet.errors import FleetError

pytest.importorskip("uvloop", reason="the router runs on it")

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
TWO = {"all": ["both", 2]}


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = []

    def make(pools=None, *, start=True, **more):
        made.append(Fleet(tmp_path, pools, **more))
        if start:
            made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.clean()


def others(fleet, name):
    return [pid for pid in fleet.pids() if pid not in fleet.pids(name)]


# Crashes


@pytest.mark.parametrize("victim", ["server", "core", "guard"])
def test_a_killed_engine_is_routed_around_at_once_and_restarted(fleet, victim):
    """Under load: no request that had got nothing fails, and the other engine isn't touched.

    At once: nobody looks at it before the test is over.
    """
    running = fleet(TWO, look_s=600.0)
    running.until_serving()
    running.behave("all-0", loads=True)  # the next run
    before = running.engine("all-0")
    untouched = others(running, "all-0")
    pid = before["pid"] if victim == "guard" else running.pids("all-0", victim)[0]
    with Traffic(running) as traffic:
        eventually(lambda: len(traffic.answers) > 20)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: running.routed("all-0")["draining"])
        running.behave("all-0")
        eventually(lambda: (e := running.engine("all-0"))["state"] == "ready" and e["restarts"])
        eventually(lambda: running.routed("all-0")["ready"])
        seen = len(traffic.answers)
        eventually(lambda: any(text == "all-0" for *_, text in traffic.answers[seen:]))
    assert traffic.failures() == []
    assert others(running, "all-0") == untouched
    after = running.engine("all-0")
    assert after["url"] == before["url"]
    assert after["pid"] != before["pid"]


def test_an_engine_that_cannot_start_fails_with_its_cause_and_the_other_serves(fleet):
    running = fleet(TWO, start=False)
    running.behave("all-1", exit=1, say="OSError: no space left")
    running.start()
    found = running.until("all-1", "failed")
    assert found["reason"] == "OSError: no space left"
    assert running.until("all-0", "ready")["restarts"] == 0
    eventually(lambda: running.post() == (200, "all-0"))
    assert running.process.poll() is None


def test_an_engine_that_can_never_start_is_started_once(fleet):
    running = fleet(TWO, start=False)
    running.behave("all-1", exit=1, say="there is no such model, for good")
    running.start()
    found = running.until("all-1", "failed")
    assert (found["reason"], found["restarts"]) == ("there is no such model, for good", 0)
    assert running.until("all-0", "ready")["restarts"] == 0


def test_a_fleet_of_which_nothing_starts_ends_with_the_cause(fleet):
    running = fleet(start=False)
    running.behave("all-0", exit=1, say="ValueError: bad flag")
    running.start()
    assert running.ended() == 1
    assert "ValueError: bad flag" in running.said[-1]
    assert not running.left([])


def test_a_crash_loop_backs_off_and_ends_when_the_fault_is_gone(fleet):
    running = fleet(TWO)
    running.until_serving()
    running.behave("all-0", exit=3, say="it broke again")
    os.kill(running.pids("all-0", "server")[0], signal.SIGKILL)
    found = eventually(
        lambda: (
            (e := running.engine("all-0")) and e["state"] == "backoff" and e["restarts"] >= 3 and e
        )
    )
    assert found["reason"] == "it broke again"
    running.behave("all-0")
    running.until("all-0", "ready")
    running.heard("started again in 2 s")
    running.heard("started again in 4 s")


def test_a_killed_router_comes_back_and_knows_which_engines_are_drained(fleet):
    running = fleet(TWO)
    running.until_serving()
    running.ask("drain", engine="all-1")
    untouched = running.pids()
    guard = running.status()["router"]["pid"]
    (router,) = processes.descendants(guard)
    os.kill(router, signal.SIGKILL)
    eventually(lambda: (r := running.status()["router"])["restarts"] and r["state"] == "ready")
    running.until("all-0", "ready")
    eventually(lambda: running.status()["serving"])
    eventually(lambda: running.routed("all-1")["draining"])
    assert {running.post() for _ in range(10)} == {(200, "all-0")}
    assert running.pids() == untouched


# Hangs


@pytest.mark.parametrize("how", ["stuck", "mute", "stopped"])
def test_a_hung_engine_is_restarted(fleet, how):
    """Work that doesn't move, a server that doesn't answer, a stopped process."""
    running = fleet(TWO, hang_s=4.0)
    running.until_serving()
    untouched = others(running, "all-0")
    server = running.pids("all-0", "server")[0]
    if how == "stopped":
        os.kill(server, signal.SIGSTOP)
    else:
        running.behave("all-0", **{how: True})
    eventually(lambda: not lives(server))
    running.behave("all-0")
    found = eventually(
        lambda: (e := running.engine("all-0"))["state"] == "ready" and e["restarts"] and e
    )
    assert found["restarts"] >= 1
    running.heard("all-0 is being ended: hung: ")
    assert others(running, "all-0") == untouched


def test_an_engine_that_is_still_over_a_request_has_as_long_as_the_request(fleet):
    """A first compilation, or a huge prompt in one step: no sign of progress for long."""
    running = fleet(hang_s=4.0, look_s=0.1)
    running.until_serving()
    running.behave("all-0", answer_s=9.0, still=True)
    assert running.post() == (200, "all-0")
    assert running.engine("all-0")["restarts"] == 0


def test_a_busy_engine_that_gets_on_is_left_alone(fleet):
    running = fleet(hang_s=2.0, look_s=0.1)
    running.behave("all-0", answer_s=5.0)
    running.until_serving()
    assert running.post() == (200, "all-0")
    assert running.engine("all-0")["restarts"] == 0


def test_an_engine_that_never_gets_ready_is_ended(fleet):
    running = fleet(start=False, start_timeout_s=1.0)
    running.behave("all-0", start_s=600)
    running.start()
    assert running.ended() == 1
    assert "not ready within 1 s" in running.said[-1]
    assert not running.left([])


# Ports


def test_nobody_takes_the_port_of_an_engine_that_is_down(fleet):
    running = fleet(TWO)
    running.until_serving()
    before = running.engine("all-0")
    port = int(before["url"].rpartition(":")[2])
    running.behave("all-0", exit=1)
    os.kill(running.pids("all-0", "server")[0], signal.SIGKILL)
    running.until("all-0", "backoff")
    for number in (port, before["side_port"]):
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", number))
    running.behave("all-0")
    assert running.until("all-0", "ready")["url"] == before["url"]


def test_a_router_port_that_is_taken_is_told_before_anything_starts(fleet):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running = fleet(router={"port": port})
        assert running.ended() == 1
    assert f"cannot listen on 127.0.0.1:{port}: another process has the port" in running.said[-1]
    assert running.pids() == []


def test_two_fleets_do_not_get_in_each_others_way(fleet, tmp_path, monkeypatch):
    one = fleet()
    one.until_serving()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other" / "state"))
    (tmp_path / "other").mkdir()
    other = Fleet(tmp_path / "other")
    try:
        other.start()
        other.until_serving()
        assert other.post() == (200, "all-0")
    finally:
        other.clean()


def test_one_supervisor_a_fleet(fleet):
    running = fleet()
    running.until_serving()
    second = Fleet(running.home)
    try:
        second.start()
        assert second.ended() == 1
        assert f"runs already (process {running.pid})" in second.said[-1]
    finally:
        second.process.kill()
        second.release()
    assert running.post() == (200, "all-0")


# Ends


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_end_and_then_ends_everything(fleet, signum):
    running = fleet(TWO, drain_s=60.0)
    running.until_serving()
    both = {"all-0", "all-1"}
    for name in both:
        running.behave(name, holds=True)
    parts = running.parts()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(running.post) for _ in range(4)]
        eventually(lambda: (b := running.busy()).keys() == both and sum(b.values()) == 4)
        running.process.send_signal(signum)
        eventually(lambda: running.status()["router"]["state"] == "stopping")
        for name in both:
            running.behave(name)
        assert {answer.result()[0] for answer in asked} == {200}
    assert running.ended() == 0
    assert running.said[-1] == "stopped"
    assert not running.left(parts)
    state = running.home / "state" / "headway" / "test"
    assert not (state / "control.sock").exists()
    assert list((state / "scratch").iterdir()) == []


def test_a_second_signal_ends_everything_at_once(fleet):
    running = fleet(TWO, drain_s=600.0)
    running.until_serving()
    running.behave("all-0", holds=True, stubborn=True)
    running.behave("all-1", holds=True, stubborn=True)
    parts = running.parts()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(running.post) for _ in range(2)]
        eventually(lambda: "all-0" in running.busy())
        running.process.send_signal(signal.SIGTERM)
        running.heard("stopping;")
        running.process.send_signal(signal.SIGTERM)
        assert running.ended() == 0
        assert 200 not in {answer.result()[0] for answer in asked}
    assert not running.left(parts)


def test_requests_that_do_not_end_hold_a_stop_up_no_longer_than_was_said(fleet):
    running = fleet(drain_s=0.5)
    running.until_serving()
    running.behave("all-0", holds=True, stubborn=True)
    parts = running.parts()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(running.post)
        eventually(running.busy)
        assert running.ask("down") == {"stopping": True}
        assert running.ended() == 0
    assert not running.left(parts)


@pytest.mark.parametrize("seed", range(8))
def test_a_signal_at_any_moment_of_a_start_leaves_nothing(fleet, seed):
    draw = random.Random(seed)
    running = fleet(TWO, start=False)
    for name in ("all-0", "all-1"):
        running.behave(name, start_s=draw.choice([0.0, 1.0]))
    running.start()
    eventually((running.home / "state" / "headway" / "test" / "lock").exists)
    parts = set()
    until_s = time.monotonic() + draw.uniform(0.0, 2.5)
    while time.monotonic() < until_s:
        parts |= running.parts()
        time.sleep(0.05)
    for _ in range(draw.choice([1, 2, 3])):
        running.process.send_signal(draw.choice([signal.SIGTERM, signal.SIGINT]))
        time.sleep(draw.uniform(0.0, 0.2))
    running.ended()
    assert not running.left(parts)


def test_a_killed_supervisor_takes_everything_along_and_the_next_one_waits_for_that(fleet):
    running = fleet(TWO)
    running.until_serving()
    parts = running.parts()
    os.kill(running.pid, signal.SIGKILL)
    second = fleet(TWO, router={"port": running.spec["router"]["port"]})
    second.until_serving()
    assert not [pid for pid in parts if lives(pid)]
    assert second.post()[0] == 200


def test_no_orphan_after_twenty_random_kills(fleet):
    """Of engines' parts, guards and the router, at any moment; then of the supervisor."""
    draw = random.Random(4)
    running = fleet(TWO)
    running.until_serving()
    everything = running.parts()
    for _ in range(20):
        below = sorted(processes.descendants(running.pid))
        everything |= set(below)
        if below:
            processes.tell([draw.choice(below)], signal.SIGKILL)
        time.sleep(draw.uniform(0.0, 0.7))
    assert running.process.poll() is None
    everything |= running.parts()

    def strays():
        """What lives and belongs to no engine that is known, where all are ready."""
        found = running.status()
        if not (found and found["serving"] and running.all_ready(found)):
            return None
        known = {running.pid}
        for each in [*found["engines"], found["router"]]:
            if each["pid"]:
                known |= {each["pid"], *processes.descendants(each["pid"])}
        return set(running.left(everything)) - known

    # Of the last kill it may not have heard yet.
    eventually(lambda: strays() == set(), "no orphan", wait_s=120.0)
    everything |= running.parts()
    os.kill(running.pid, signal.SIGKILL)
    running.nothing_left(everything)


def test_kills_of_several_at_once_leave_nothing_either(fleet):
    draw = random.Random(7)
    running = fleet(TWO)
    running.until_serving()
    everything = running.parts()
    below = sorted(processes.descendants(running.pid))
    processes.tell(draw.sample(below, len(below) // 2), signal.SIGKILL)
    time.sleep(0.2)
    everything |= running.parts()
    running.process.send_signal(signal.SIGTERM)
    running.ended()
    assert not running.left(everything)


# What operators ask


def test_a_drained_engine_gets_nothing_new_until_it_is_undrained(fleet):
    running = fleet(TWO)
    running.until_serving()
    assert running.ask("drain", engine="all-0") == {"told": True}
    assert {running.post() for _ in range(10)} == {(200, "all-1")}
    assert running.engine("all-0")["state"] == "draining"
    running.ask("undrain", engine="all-0")
    eventually(lambda: running.post() == (200, "all-0"))
    there = "there are: all-0, all-1"
    with pytest.raises(FleetError, match=f"no engine 'x' in this fleet; {there}") as refused:
        running.ask("drain", engine="x")
    assert refused.value.exit_status == NOT_FOUND


def test_a_rolling_restart_of_two_fails_no_request(fleet):
    running = fleet(TWO)
    for name in ("all-0", "all-1"):
        running.behave(name, answer_s=0.1)
    running.until_serving()
    old = running.pids(role="server")
    with Traffic(running) as traffic:
        eventually(lambda: len(traffic.answers) > 10)
        assert running.ask("restart", pool="all") == {"restarted": ["all-0", "all-1"]}
        seen = len(traffic.answers)
        eventually(lambda: len(traffic.answers) > seen + 10)
    assert traffic.failures() == []
    assert not [pid for pid in old if lives(pid)]
    assert [e["restarts"] for e in running.status()["engines"]] == [0, 0]


def test_a_restart_of_a_pool_of_one_refuses_with_retry_after_and_cuts_nothing(fleet):
    running = fleet()
    running.behave("all-0", answer_s=0.3)
    running.until_serving()
    with Traffic(running) as traffic:
        eventually(lambda: len(traffic.answers) > 10)
        running.ask("restart", pool="all")
        seen = len(traffic.answers)
        eventually(lambda: any(s == 200 for _, s, _ in traffic.answers[seen:]))
    refused = traffic.failures()
    assert {status for status, _ in refused} <= {503}
    assert all(after is not None for _, after in refused)


def test_a_restart_stops_at_an_engine_that_does_not_come_back(fleet):
    running = fleet(TWO)
    running.until_serving()
    second = running.pids("all-1", "server")
    running.behave("all-0", exit=1, say="ValueError: bad flag")
    with pytest.raises(FleetError, match="all-0 didn't come back: ValueError: bad flag"):
        running.ask("restart", pool="all")
    assert running.pids("all-1", "server") == second
    assert running.post() == (200, "all-1")


def test_scaling_adds_and_drains_engines_while_requests_go_on(fleet):
    running = fleet(drain_s=60.0)
    running.until_serving()
    with Traffic(running) as traffic:
        asked = running.ask("scale", pool="all", replicas=3)
        assert asked == {"added": ["all-1", "all-2"], "leaving": []}
        eventually(lambda: {text for *_, text in traffic.answers} >= {"all-0", "all-1", "all-2"})
        for name in ("all-1", "all-2"):
            running.behave(name, holds=True)
        eventually(lambda: running.busy().keys() >= {"all-1", "all-2"})
        leaving = running.pids("all-1") + running.pids("all-2")
        running.ask("scale", pool="all", replicas=1)
        eventually(lambda: running.states() == ("ready", "draining", "draining"))
        for name in ("all-1", "all-2"):
            running.behave(name)
        eventually(lambda: len(running.status()["engines"]) == 1)
        eventually(lambda: not [pid for pid in leaving if lives(pid)])
    assert traffic.failures() == []
    with pytest.raises(FleetError, match="no pool 'x' is started here; there are: all") as refused:
        running.ask("scale", pool="x", replicas=2)
    assert refused.value.exit_status == NOT_FOUND
    with pytest.raises(FleetError, match="at least one"):
        running.ask("scale", pool="all", replicas=0)


def test_a_hangup_reads_the_file_again(fleet):
    running = fleet()
    running.until_serving()
    running.describe(
        pools={"all": ["both", 2]}, router=running.spec["router"] | {"max_concurrent": 7}
    )
    running.process.send_signal(signal.SIGHUP)
    running.until("all-1", "ready")
    running.heard("reload: done")
    assert running.status()["waiting"] == []
    port = running.spec["router"]["port"]
    running.describe(router=running.spec["router"] | {"port": 2})
    asked = running.ask("reload")
    assert asked == {"restart": [], "waiting": [f"router.port stays {port}, not 2"]}
    assert running.status()["waiting"] == asked["waiting"]
    running.heard("reload: done, but for what is named above")
    running.describe(router=running.spec["router"] | {"port": port})
    assert running.ask("reload") == {"restart": [], "waiting": []}
    running.describe(pools={"all": ["both", 2], "more": ["both", 1]})
    with pytest.raises(FleetError, match=r"to add or remove pools \(more\) use headway down"):
        running.ask("reload")
    assert running.post()[0] == 200


def test_while_it_stops_it_takes_no_orders(fleet):
    running = fleet(drain_s=60.0)
    running.behave("all-0", holds=True)
    running.until_serving()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(running.post)
        eventually(running.busy)
        running.ask("down")
        with pytest.raises(FleetError, match="is being stopped"):
            running.ask("restart", pool="all")
        assert running.status()["stopping"]
        running.behave("all-0")
        assert answer.result() == (200, "all-0")
    assert running.ended() == 0


def test_logs_of_a_run_and_of_the_one_before_are_kept(fleet):
    running = fleet(TWO)
    running.until_serving()
    running.behave("all-0", exit=1, say="first words")
    os.kill(running.pids("all-0", "server")[0], signal.SIGKILL)
    log = running.home / "state" / "headway" / "test" / "logs" / "all-0.log"

    def said():
        with contextlib.suppress(FileNotFoundError):  # it is being put aside
            return log.read_text()

    eventually(lambda: said() == "first words\n")
    running.behave("all-0")
    running.until("all-0", "ready")
    assert log.with_name("all-0.log.1").read_text() == "first words\n"


def test_engines_of_a_machine_with_little_memory_start_one_after_the_other(fleet):
    running = fleet(TWO, start=False, memory_gib=1.0)
    for name in ("all-0", "all-1"):
        running.behave(name, loads=True)
    running.start()
    seen = []

    def states():
        seen.append(running.states())
        return seen[-1]

    eventually(lambda: states() == ("starting", "queued"))
    running.behave("all-0")
    eventually(lambda: states() == ("ready", "starting"))
    running.behave("all-1")
    eventually(lambda: states() == ("ready", "ready"))
    assert ("starting", "starting") not in seen
