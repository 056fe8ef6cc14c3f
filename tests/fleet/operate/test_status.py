"""`headway status`: what is shown of what the supervisor and the router say."""

import http.server
import re
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.status import (
    EngineStatus,
    FleetStatus,
    ReportedStatus,
    RoutedEngine,
    RoutedPool,
    RouterState,
    RouterStatus,
    StatusReport,
    WorkStatus,
    read,
    written,
)
from headway.fleet.operate import execution, goodput, status
from headway.fleet.operate.goodput import Recent, Tally, tally
from headway.fleet.operate.status import Seen, text
from headway.router.state.metrics import Metrics

METRICS = """\
# HELP headway:router_slo_total Requests sent, by whether they met all limits
# TYPE headway:router_slo_total counter
headway:router_slo_total{length="short",met="true",verdict="met"} 9.0
headway:router_slo_total{length="short",met="false",verdict="ttft"} 1.0
headway:router_slo_total{length="long",met="true",verdict="met"} 2.0
headway:router_slo_total{length="none",met="false",verdict="refused"} 3.0
headway:router_slo_total{length="short",met="none",verdict="client left"} 7.0
headway:router_requests_total{endpoint="chat",length="short",status="200"} 12.0
"""


def engine(pool, role, port, **more):
    given = {
        "name": f"{pool}-0",
        "pool": pool,
        "role": role,
        "state": "ready",
        "url": f"http://127.0.0.1:{port}",
        "router_id": f"{pool}/127.0.0.1:{port}",
        "pid": 7,
        "since_s": 5.0,
        "devices": (0,),
        "log": "/nowhere/x.log",
    }
    return EngineStatus(**(given | more))


def fleet(*engines, **more):
    given = {
        "name": "default",
        "endpoint": "http://127.0.0.1:8000",
        "admin": "http://127.0.0.1:9001",
        "router": RouterStatus(state="ready"),
    }
    return FleetStatus(engines=engines, **(given | more))


def routed(pool, role, port, **more):
    given = {
        "id": f"{pool}/127.0.0.1:{port}",
        "ready": True,
        "reason": "ready",
        "work": WorkStatus(requests=2, kv_tokens=500),
        "reported": ReportedStatus(waiting=1, running=1, kv_capacity_tokens=2000),
    }
    return RoutedPool(name=pool, role=role, engines=(RoutedEngine(**(given | more)),))


def router_state(*, decode=None, more=()):
    """Of a pair. decode: what is said of its decode engine. more: pools."""
    pair = routed("prefill", "prefill", 8101), routed("decode", "decode", 8102, **(decode or {}))
    return RouterState(strategy="disaggregated", pools=(*pair, *more))


PAIR = fleet(engine("prefill", "prefill", 8101), engine("decode", "decode", 8102, devices=(1, 2)))
ROUTER = router_state()


def test_a_fleet_at_work_is_a_table():
    recent = Recent()
    recent.add(0.0, Tally())
    recent.add(10.0, tally(METRICS))
    shown = text(Seen(fleet=PAIR, router=ROUTER, goodput=recent.now())).splitlines()
    assert shown[0] == "fleet default: 2 of 2 engines ready; http://127.0.0.1:8000 (disaggregated)"
    assert shown[1].startswith("goodput 1.10/s: 73% of 1.50 requests/s met all limits in the last")
    assert shown[1].endswith(
        "10 s (long 100%, short 90%); missed: 3 refused, 1 with a late first token"
    )
    heads = ["POOL", "ENGINE", "ROLE", "STATE", "LOAD", "KV", "RESTARTS", "DECODES", "WHERE"]
    common = ["ready 5 s", "2, 1 waiting", "25%", "0", "-"]
    assert [re.split(" {2,}", line) for line in shown[3:]] == [
        heads,
        ["prefill", "prefill-0", "prefill", *common, "127.0.0.1:8101 on 0"],
        ["decode", "decode-0", "decode", *common, "127.0.0.1:8102 on 1-2"],
    ]


def test_a_router_that_does_not_answer_leaves_gaps_not_errors():
    shown = text(Seen(fleet=PAIR))
    assert "2 of 2 engines ready; http://127.0.0.1:8000\n" in shown
    assert "goodput" not in shown


def test_what_is_wrong_is_said_below(tmp_path):
    log = tmp_path / "d.log"
    log.write_text("INFO:     Application startup complete.\n")
    down = fleet(
        engine("prefill", "prefill", 8101, state="failed", reason="memory ran out"),
        engine("decode", "decode", 8102, state="starting", log=str(log), restarts=3),
    )
    router = RouterStatus(state="backoff", reason="ended with status 1")
    shown = text(Seen(fleet=replace(down, router=router)))
    assert "0 of 2 engines ready" in shown
    assert "  router: backoff: ended with status 1\n  prefill-0: memory ran out" in shown
    assert "preparing to serve" in shown


def test_an_engine_the_router_shuns_is_told():
    router = router_state(decode={"ready": False, "reason": "circuit breaker open"})
    shown = text(Seen(fleet=PAIR, router=router))
    assert "decode-0: gets no requests: circuit breaker open" in shown


def test_an_engine_that_says_nothing_is_told():
    said = {"health": "degraded", "reason": "degraded: 9 health checks unanswered"}
    router = router_state(decode=said)
    shown = text(Seen(fleet=PAIR, router=router))
    assert (
        "decode-0: gets only what no other engine can serve: degraded: 9 health checks unanswered"
    ) in shown


def test_what_is_to_be_said_of_an_engine_that_runs_is_told():
    noted = fleet(engine("prefill", "prefill", 8101, note="headway's scheduler stands aside"))
    assert "prefill-0: headway's scheduler stands aside" in text(Seen(fleet=noted))


def test_engines_running_elsewhere_are_listed():
    router = router_state(more=[routed("far", "both", 9)])
    shown = text(Seen(fleet=PAIR, router=router))
    assert "far/127.0.0.1:9  both  ready  load 2, 1 waiting  running elsewhere" in shown


def test_json_has_it_all():
    recent = Recent()
    recent.add(0.0, Tally())
    recent.add(10.0, tally(METRICS))
    seen = Seen(
        fleet=PAIR,
        router=ROUTER,
        goodput=recent.now(),
        executions={"decode-0": execution.Execution("cpu", compiled=False)},
    )
    told = read(StatusReport, written(seen.report()))
    assert told.fleet == PAIR
    assert told.router == ROUTER
    assert told.goodput["all"].met_per_s == pytest.approx(1.1)
    assert told.goodput["long"].attainment == 1
    assert told.goodput["all"].missed == {"refused": 3, "ttft": 1}
    assert told.decodes == {"decode-0": "eager"}


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (10**6, "12 d")],
)
def test_times_are_told_in_their_largest_unit(seconds, told):
    assert status._for(seconds) == told


def test_what_is_under_way_is_told():
    busy = replace(PAIR, busy="restart of decode")
    assert "restart of decode is under way" in text(Seen(fleet=busy))
    assert "stopping is under way" in text(Seen(fleet=replace(PAIR, stopping=True)))


def test_a_fleet_whose_engines_run_elsewhere_has_no_table():
    shown = text(Seen(fleet=fleet(), router=RouterState(pools=(routed("far", "both", 9),))))
    assert "ENGINE" not in shown
    assert "running elsewhere" in shown


def test_devices_are_told_in_ranges():
    assert status._devices([3, 0, 1, 2, 6]) == "0-3,6"
    assert status._devices([4]) == "4"
    assert status._where(engine("a", "both", 1, url="http://h:1", devices=(4,))) == "h:1 on 4"
    assert status._where(engine("a", "both", 1, url="http://h:1", devices=())) == "h:1"


# Goodput


def test_goodput_is_that_of_the_last_minute():
    recent = Recent()
    for now_s in range(200):
        recent.add(float(now_s), Tally({"short": now_s}, {"short": 2 * now_s}))
    found = recent.now()[""]
    assert (found.over_s, found.met_per_s, found.sent_per_s) == (60, 1, 2)


def test_a_router_that_began_anew_counts_from_nothing():
    recent = Recent()
    recent.add(0.0, Tally({"short": 90}, {"short": 100}))
    recent.add(10.0, Tally({"short": 3}, {"short": 4}))
    assert recent.now() == {}
    recent.add(20.0, Tally({"short": 13}, {"short": 14}))
    assert recent.now()[""].met == 13


@given(st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_rates_are_never_negative_and_never_more_than_was_counted(steps):
    recent, now_s, met, sent = Recent(), 0.0, 0, 0
    for gap_s, more_met, more_missed in steps:
        now_s, met, sent = now_s + gap_s, met + more_met, sent + more_met + more_missed
        recent.add(now_s, Tally({"a": met}, {"a": sent}))
        for found in recent.now().values():
            assert 0 <= found.met <= found.sent <= sent
            assert 0 < found.over_s < goodput.WINDOW_S + 30.1


def test_samples_are_kept_in_a_file_for_whoever_asks_once(tmp_path):
    path = tmp_path / goodput.FILE
    recent = Recent()
    recent.add(100.0, Tally({"a": 1}, {"a": 1}))
    recent.add(110.0, Tally({"a": 3}, {"a": 4}))
    recent.write(path)
    assert Recent.read(path, 111.0).now() == recent.now()
    assert Recent.read(path, 1000.0).now() == {}, "too old"
    assert Recent.read(path, 50.0).now() == {}, "of another boot"


@pytest.mark.parametrize("text_", ["", "{", "[1]", "[[1, 2]]", '[["a", {}, {}]]', "null"])
def test_samples_that_cannot_be_read_are_none(tmp_path, text_):
    path = tmp_path / goodput.FILE
    assert Recent.read(path, 1.0).now() == {}
    path.write_text(text_)
    assert Recent.read(path, 1.0).now() == {}


def test_counters_are_read_from_the_text_and_nothing_else():
    assert tally(METRICS) == Tally(
        {"short": 9, "long": 2, "none": 0},
        {"short": 10, "long": 2, "none": 3},
        {"ttft": 1, "refused": 3},
    )
    assert tally("") == Tally()


# How engines run their model

EAGER = (
    "(APIServer pid=1) INFO 11-29 22:54:36 [api_utils.py:286] non-default args: "
    "{'model': 'm', 'max_num_seqs': 64}\n"
    "(EngineCore pid=2) INFO 11-29 22:54:48 [core.py:133] Initializing a V1 LLM engine (v0.32.0) "
    "with config: model='m', enforce_eager=True, device_config=cpu, compilation_config={'mode': "
    "<CompilationMode.NONE: 0>, 'cudagraph_mode': <CUDAGraphMode.NONE: 0>, "
    "'max_cudagraph_capture_size': None, 'x': 1}\n"
)
GRAPHS = (
    EAGER.replace("device_config=cpu", "device_config=cuda")
    .replace("CompilationMode.NONE: 0", "CompilationMode.VLLM_COMPILE: 3")
    .replace("CUDAGraphMode.NONE: 0", "CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)")
    .replace("capture_size': None", "capture_size': 128")
)


@pytest.mark.parametrize(
    ("log", "told", "wrong"),
    [
        (GRAPHS, "graphs to 128", None),
        (GRAPHS.replace("64", "256"), "graphs to 128", "batches over 128 have no CUDA graph"),
        (EAGER.replace("=cpu", "=cuda"), "eager", "decodes without CUDA graphs"),
        (EAGER, "eager", "isn't compiled"),
        (EAGER.replace("e.NONE: 0>, 'c", "e.DYNAMO_TRACE_ONCE: 2>, 'c"), "compiled", None),
    ],
)
def test_slow_decode_is_told_from_vllms_own_configuration(log, told, wrong):
    found = execution.parse(log)
    assert str(found) == told
    said = execution.slow_decode(found)
    assert said is None if wrong is None else said.startswith(wrong)


def test_without_the_configuration_nothing_is_claimed(tmp_path):
    assert execution.parse("starting\n") is None
    assert execution.of(tmp_path / "none.log") is None


def test_what_is_said_of_several_engines_is_said_once():
    slow = execution.parse(EAGER)
    two = fleet(engine("a", "both", 1), engine("b", "both", 2))
    assert "  a-0, b-0: isn't compiled" in text(
        Seen(fleet=two, executions={"a-0": slow, "b-0": slow})
    )


def test_only_engines_that_decode_are_warned_about():
    slow = execution.parse(EAGER)
    seen = Seen(fleet=PAIR, executions={"prefill-0": slow, "decode-0": slow})
    assert text(seen).count("isn't compiled") == 1


# Fetching


@pytest.mark.parametrize(
    ("answer_status", "body", "known"),
    [
        (200, written(ROUTER), ROUTER),
        (500, written(ROUTER), None),
        (200, "no JSON", None),
        (200, '{"version": 1000}', None),
    ],
)
def test_only_a_good_answer_is_taken(answer_status, body, known):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answer_status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        admin = f"http://127.0.0.1:{server.server_port}"
        try:
            found = status.seen(replace(PAIR, admin=admin), Recent())
        finally:
            server.shutdown()
            thread.join()
    assert found.router == known
    assert status.seen(replace(PAIR, admin=admin), Recent()).router is None, "nobody listens"


def test_the_routers_own_metrics_are_read():
    """Its names and labels are known here in words only."""
    metrics = Metrics()
    for length, met, verdict in (
        ("short", "true", "met"),
        ("none", "false", "refused"),
        ("long", "none", "unknown"),
    ):
        metrics.slo.add(length, met, verdict)
    told = metrics.render([], 0.0, in_flight=0, body_bytes=0).decode()
    assert tally(told) == Tally({"short": 1, "none": 0}, {"short": 1, "none": 1}, {"refused": 1})
