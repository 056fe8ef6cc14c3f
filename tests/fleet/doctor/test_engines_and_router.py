"""Findings about engines and a router that run."""

import contextlib
import email.utils
import socket
import threading
import time

import pytest
from tests.fleet.doctor.examining import Stub, facts, severities

from headway.core.json_shape import from_json
from headway.core.status import RouterState
from headway.fleet.doctor import engines as engine_checks
from headway.fleet.doctor import router as router_checks
from headway.fleet.doctor.engines import EngineTarget, ask, of_engine, skew_s
from headway.fleet.net.http_sync import HttpAnswer, HttpServer


def target(stub, role="both", policy=None):
    return EngineTarget("a/x:1", role, HttpServer(stub.url), policy)


# Engines


def test_an_engine_that_is_well_is_one_line():
    with Stub() as stub:
        found = ask(target(stub))
        assert severities(of_engine(found)) == ["ok"]
        assert found.version == "0.32.0"
        assert found.max_model_len == 8192
        assert stub.asked[0]["max_tokens"] == 1


def test_an_engine_without_headway_s_scheduler_is_warned_of_unless_it_was_asked_for():
    with Stub(_metrics=b"vllm:num_requests_running 0\n") as stub:
        assert severities(of_engine(ask(target(stub)))) == [
            "ok",
            "warning",
        ]
        assert severities(of_engine(ask(target(stub, policy="vllm")))) == ["ok"]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"_health": (503, b"")}, "isn't well: /health has status 503"),
        ({"_v1_models": {"data": []}}, "doesn't generate: it lists no model"),
        ({"_v1_models": b"<html>"}, "doesn't generate: it lists no model"),
        ({"_v1_models": (401, b"{}")}, "doesn't generate: it lists no model"),
        (
            {"_v1_completions": (400, {"error": {"message": "no\nsuch thing"}})},
            "doesn't generate: status 400: no such thing",
        ),
        ({"_v1_completions": (500, b"\xff boom")}, "status 500: \ufffd boom"),
    ],
)
def test_an_engine_that_isn_t_well_is_an_error_with_its_cause(answers, said):
    stubbed = {key.replace("_v1_", "_v1/"): value for key, value in answers.items()}
    with Stub(**stubbed) as stub:
        (found,) = of_engine(ask(target(stub)))
        assert found.severity == "error"
        assert said in found.what
        assert found.then


def test_an_engine_that_is_gone_or_silent_or_talks_nonsense_is_an_error(monkeypatch):
    monkeypatch.setattr(engine_checks, "ASK_S", 0.3)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        silent = HttpServer(f"http://127.0.0.1:{listening.getsockname()[1]}")
        found = ask(EngineTarget("a/x:1", "both", silent))
        assert severities(of_engine(found)) == ["error"]
    assert severities(of_engine(ask(EngineTarget("a/x:1", "both", silent)))) == ["error"]


def test_an_endless_answer_is_left(monkeypatch):
    def flood(connection):
        with contextlib.suppress(OSError), connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"x" * 65536)

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = HttpServer(f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread = threading.Thread(target=lambda: flood(listening.accept()[0]))
        thread.start()
        assert server.get("/metrics", 2.0) is None
        thread.join()


@pytest.mark.parametrize("ahead_s", [-3600, -5, -1, 0, 1, 5, 3600])
def test_clocks_that_differ_are_warned_of(ahead_s, monkeypatch):
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    with Stub() as stub:
        stub.date = email.utils.formatdate(time.time() + ahead_s, usegmt=True)
        found = ask(target(stub))
    assert found.skew_s == pytest.approx(ahead_s, abs=0.9)
    warned = "warning" in severities(of_engine(found))
    assert warned == (abs(ahead_s) > 2)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 99 Nov 2026 00:00:00 GMT"])
def test_a_server_that_doesn_t_tell_the_time_has_no_skew(date):
    assert skew_s(HttpAnswer(200, {"date": date} if date is not None else {}, b"", 0.0)) is None


@pytest.mark.parametrize(
    ("changes", "severity", "said"),
    [
        ({}, "ok", "match"),
        ({"version": "0.32.1"}, "error", "vLLM 0.32.0 and 0.32.1"),
        ({"models": ("other",)}, "error", "different models: m and other"),
        ({"max_model_len": 4096}, "warning", "8192 and 4096"),
        ({"max_model_len": 16384}, "ok", "match"),
    ],
)
def test_pairs_must_fit_one_another(changes, severity, said):
    sides = [facts("prefill", "p/x:1"), facts("decode", "d/x:2", **changes)]
    (found,) = engine_checks.of_pairs(sides)
    assert found.severity == severity
    assert said in found.what
    assert not list(engine_checks.of_pairs(sides[:1]))
    assert not list(engine_checks.of_pairs([facts(), facts(version="0.33")]))


# The router


def route(reason):
    return {"x-headway-route": f'disaggregated; reason="{reason}"; class="short"'}


@pytest.mark.parametrize(
    ("answer", "moved", "severity", "said"),
    [
        (HttpAnswer(200, route("split"), b"", 0), 2e6, "ok", "KV moves: 2.0 MB"),
        (HttpAnswer(200, {}, b"", 0), 2e6, "ok", "KV moves"),
        (HttpAnswer(200, route("split"), b"", 0), 0.0, "error", "no KV moved"),
        (HttpAnswer(200, {}, b"", 0), 0.0, "error", "no KV moved"),
        (HttpAnswer(200, route("no prefill engine"), b"", 0), 0.0, "warning", "wasn't split"),
        (HttpAnswer(401, {}, b"", 0), 0.0, "note", "asks for a key"),
        (HttpAnswer(503, {}, b'{"error": {"message": "none"}}', 0), 0.0, "error", "503: none"),
        (None, 0.0, "error", "no answer"),
    ],
)
def test_a_request_through_the_router_tells_whether_kv_moves(answer, moved, severity, said):
    found = router_checks.of_probe(answer, moved, splits=True, url="http://x:1")
    assert found.severity == severity
    assert said in found.what
    assert severity == "ok" or found.then


def test_without_disaggregation_an_answer_is_enough():
    found = router_checks.of_probe(HttpAnswer(200, {}, b"", 0), 0.0, splits=False, url="http://x:1")
    assert found.severity == "ok"


def test_the_router_s_engines_and_a_request_that_moves_kv():
    state = {
        "pools": [{"name": "d", "role": "decode", "engines": [{"id": "d/x:1", "ready": True}]}]
    }
    counted = [b'vllm:nixl_bytes_transferred_sum{engine="0"} %d.0\n' % n for n in (5, 5, 1005)]
    with Stub(_metrics=counted) as engine, Stub(_state=state) as router:
        router.headers = route("split")
        found = list(
            router_checks.examine(
                HttpServer(router.url),
                HttpServer(router.url),
                [target(engine, "decode")],
                splits=True,
            )
        )
    assert severities(found) == ["ok", "ok"]
    assert "KV moves: 0.0 MB" in found[1].what
    assert len(router.asked[0]["prompt"].split()) > 100


def test_engines_without_requests_are_told_with_the_router_s_reason():
    engines = [
        {"id": "a/x:1", "ready": False, "reason": "circuit breaker open"},
        {"id": "a/x:2", "ready": False, "draining": True, "reason": "draining"},
        {"id": "a/x:3", "ready": True},
        {"id": "a/x:4", "ready": True, "health": "degraded", "reason": "degraded: 3 unanswered"},
    ]
    pools = [{"name": "a", "role": "both", "engines": engines}]
    found = list(router_checks.of_state(from_json(RouterState, {"pools": pools})))
    assert severities(found) == ["warning", "note", "warning"]
    assert "a/x:1 gets no requests: circuit breaker open" in found[0].what
    assert "a/x:4 gets only what no other engine can serve: degraded: 3" in found[2].what


@pytest.mark.parametrize(
    "nonsense", [[], {"pools": 1}, {"pools": [1]}, {"data": "x"}, {"data": []}]
)
def test_a_router_that_is_none_is_an_error(nonsense):
    with Stub(_state=nonsense) as other:
        other.answers["/v1/models"] = nonsense
        server = HttpServer(other.url)
        found = list(router_checks.examine(server, server, [], splits=False))
    assert found[-1].severity == "error"
    assert "got no answer" in found[-1].what
