"""All that the doctor examines, as a whole."""

import json
import os
import socket

import pytest
from tests.fleet.doctor.examining import CPU, Stub

from headway.core import reports
from headway.core.json_shape import from_json
from headway.fleet.doctor import doctor

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


def test_programs_get_all_findings_and_nothing_but_json(examined):
    jsonschema = pytest.importorskip("jsonschema")
    status, text = examined('[router]\nprot = 1\n[[pool]]\nname = "a"\nrole = "c"\n', json=True)
    assert status == 1
    told = json.loads(text)
    jsonschema.validate(told, json.loads(reports.schema_text(reports.DoctorReport)))
    report = from_json(reports.DoctorReport, told)
    assert (report.version, report.errors) == (1, 2)
    errors = [each for each in report.findings if each.severity == "error"]
    assert [each.about for each in errors] == ["file", "file"]
    assert "headway.toml:2: router.prot" in errors[0].what
    assert errors[0].then == "change the file"


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
