"""`headway doctor`: what it finds in an installation, a file and engines that run."""

import contextlib
import email.utils
import http.server
import json
import os
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine_metrics import Fallback
from headway.core.json_shape import from_json
from headway.core.status import RouterState
from headway.engine import compat
from headway.fleet.doctor import doctor, installation, machine
from headway.fleet.doctor import engines as engine_checks
from headway.fleet.doctor import router as router_checks
from headway.fleet.doctor.engines import EngineTarget, Facts, ask, of_engine, skew_s
from headway.fleet.doctor.finding import Finding, summary, tell
from headway.fleet.net.http_sync import HttpAnswer, HttpServer
from headway.fleet.plan.spec import EngineSpec, Machine

CPU = Machine(cores=(0, 1), gpus=(), memory_gib=16.0, cpu=True)
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


def severities(findings):
    return [finding.severity for finding in findings]


class Stub:
    """An engine, or a router with its admin port, of canned answers.

    generated: what POST bodies asked for. metrics may be a list of texts, one for each look.
    """

    def __init__(self, **answers):
        self.answers = {
            "/health": b"",
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": [{"id": "m", "max_model_len": 8192}]},
            "/v1/completions": {"choices": [{"text": "x"}]},
            "/metrics": b"headway:steps_total 1.0\n",
        } | {key.replace("_", "/"): value for key, value in answers.items()}
        self.date = None
        self.headers = {}
        self.asked = []
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer()

            def do_POST(self):
                length = int(self.headers["Content-Length"])
                stub.asked.append(json.loads(self.rfile.read(length)))
                self.answer()

            def answer(self):
                found = stub.answers.get(self.path, (404, b"{}"))
                if isinstance(found, list):
                    found = found.pop(0) if len(found) > 1 else found[0]
                status, body = found if isinstance(found, tuple) else (200, found)
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response_only(status)
                if stub.date is not None:
                    self.send_header("Date", stub.date)
                for name, value in stub.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def target(stub, role="both", policy=None):
    return EngineTarget("a/x:1", role, HttpServer(stub.url), policy)


def facts(role="both", name="a/x:1", **changes):
    values = {
        "health": 200,
        "version": "0.32.0",
        "models": ("m",),
        "max_model_len": 8192,
        "skew_s": 0.3,
        "generates": True,
        "steered": True,
    }
    return Facts(EngineTarget(name, role, HttpServer("http://x:1")), **(values | changes))


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
    said = summary(findings)
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


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print('noise'); print('{\"version\": \"1\"}')", {"version": "1"}),
        ("import sys; sys.exit('no room')", "ended with status 1: no room"),
        ("print('[]')", "ended with status 0"),
        ("import time; time.sleep(60)", "took more than"),
    ],
)
def test_looking_at_vllm_survives_whatever_importing_it_does(monkeypatch, script, said):
    monkeypatch.setattr(installation, "_LOOK", script)
    monkeypatch.setattr(installation, "_TIMEOUT_S", 1.0)
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
def test_clocks_that_differ_are_warned_of(ahead_s):
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


# All of it


@pytest.fixture
def examined(monkeypatch, tmp_path):
    """Runs the doctor on a machine of two cores, without looking at vLLM; status and lines."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor.hardware, "detect", lambda: CPU)
    monkeypatch.setattr(doctor.installation, "examine", lambda *, splits: [])

    def run(text=None, **more):
        path = None
        if text is not None:
            path = str(tmp_path / "headway.toml")
            (tmp_path / "headway.toml").write_text(text)
        lines = []
        return doctor.run(path, lines.append, **more), "\n".join(lines)

    return run


def test_every_problem_of_a_file_is_an_error_with_its_line(examined):
    status, text = examined('[router]\nprot = 1\n[[pool]]\nname = "a"\nrole = "c"\n')
    assert status == 1
    assert "headway.toml:2: router.prot" in text
    assert "headway.toml:5: pool[0].role" in text
    assert text.endswith("2 errors")


def test_a_pair_that_can_t_work_is_an_error(examined):
    file = '[router]\nstrategy = "disaggregated"\nport = 0\nadmin_port = 9\n'
    file += '[[pool]]\nname = "p"\nrole = "prefill"\nmodel = "a"\n'
    file += '[[pool]]\nname = "d"\nrole = "decode"\nmodel = "b"\n'
    status, text = examined(file)
    assert status == 1
    assert "use one model for both" in text


def test_a_file_that_is_fine_has_no_errors_and_says_that_nothing_runs(examined):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = f'[router]\nport = 0\nadmin_port = {port}\n[[pool]]\nname = "a"\n'
    status, text = examined(file)
    assert status == 0
    assert "engines to start: 1" in text
    assert f"router.admin_port: port {port} is free" in text
    assert "the fleet doesn't run" in text


def test_engines_that_run_elsewhere_are_asked(examined):
    with Stub() as stub:
        file = f'[router]\nadmin_port = 0\n[[pool]]\nname = "a"\nengines = ["{stub.url}"]\n'
        status, text = examined(file)
        assert status == 0
        assert f"a/127.0.0.1:{stub.port} generates, vLLM 0.32.0, headway's scheduler" in text
        assert "no router with this file runs here" in text
    status, text = examined(file)
    assert status == 1
    assert f"a/127.0.0.1:{stub.port} doesn't answer" in text


def test_a_router_with_this_file_is_asked_too(examined):
    state = {"pools": [{"name": "a", "role": "both", "engines": [{"id": "a/x:1", "ready": True}]}]}
    with Stub() as engine, Stub(_state=state) as router, Stub() as admin:
        admin.answers["/state"] = state
        file = f"[router]\nport = {router.port}\nadmin_port = {admin.port}\n"
        file += f'[[pool]]\nname = "a"\nengines = ["{engine.url}"]\n'
        status, text = examined(file)
    assert status == 0
    assert "sends requests to every engine (1)" in text
    assert "a request through it was answered" in text


def test_a_running_fleet_is_examined_router_and_engines(examined, monkeypatch, tmp_path):
    home = tmp_path / "state" / "headway" / "chat"
    home.mkdir(parents=True)
    state = {"pools": [{"name": "a", "role": "both", "engines": [{"id": "a/x:1", "ready": True}]}]}
    with Stub() as engine, Stub(_state=state) as router:
        (home / "router.toml").write_text(f'[[pool]]\nname = "a"\nengines = ["{engine.url}"]\n')
        (home / "control.sock").touch()
        known = {"pool": "a", "role": "both", "router_id": "", "url": "", "log": ""}
        told = {
            "admin": router.url,
            "endpoint": router.url.replace("127.0.0.1", "0.0.0.0"),  # noqa: S104 -- as in a file
            "name": "chat",
            "router": {"state": "ready"},
            "engines": [
                {**known, "name": "a-0", "state": "ready", "reason": ""},
                {**known, "name": "a-1", "state": "backoff", "reason": "out of memory"},
                {
                    **known,
                    "name": "a-2",
                    "state": "failed",
                    "reason": "no model",
                    "router_id": "a/127.0.0.1:9",
                },
            ],
        }
        monkeypatch.setattr(doctor.control_socket, "ask", lambda *_: told)
        status, text = examined(name="chat")
    assert status == 1
    assert "warning  a-1 is backoff: out of memory" in text
    assert "error    a-2 is failed: no model" in text
    assert f"a/127.0.0.1:{engine.port} generates" in text
    assert "a request through it was answered" in text
    assert "is free" not in text
    assert "a/127.0.0.1:9 doesn't answer" not in text


def test_the_usual_file_is_read_as_headway_up_reads_it(examined, tmp_path):
    (tmp_path / "headway.toml").write_text("[router]\nprot = 1\n")
    status, text = examined()
    assert status == 1
    assert "headway.toml:2: router.prot" in text


def test_a_socket_that_nobody_answers_at_is_a_warning(examined, tmp_path):
    home = tmp_path / "state" / "headway" / "default"
    home.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        folder = os.open(home, os.O_PATH)
        left.bind(f"/proc/self/fd/{folder}/control.sock")
        os.close(folder)
    _, text = examined()
    assert "no fleet default runs here" in text


def test_a_name_that_can_t_be_one_is_said(examined):
    _, text = examined(name="../x")
    assert "can't name a fleet" in text
