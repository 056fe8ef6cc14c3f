"""Starting, pinning and stopping engines, with a stand-in for the engine."""

import io
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from headway.bench.engines import arms
from headway.bench.engines import engine as engines
from headway.bench.engines.engine import BenchEngine, EngineError
from headway.bench.engines.processes import free_ports
from headway.bench.report.document import ProgressLines

pytestmark = pytest.mark.process

SERVER = """
import http.server, os, subprocess, sys, threading
os.sched_setaffinity(0, {int(os.environ["CORE"])})
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where logs are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def engine(script: str, core: int = 0) -> BenchEngine:
    (port,) = free_ports(1)
    return BenchEngine(
        "stub",
        [sys.executable, "-c", script, str(port)],
        {**os.environ, "CORE": str(core)},
        port=port,
        core=core,
        progress=ProgressLines(io.StringIO()),
    )


def child_of(log: Path) -> int:
    return int(log.read_text().split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_nothing_is_left_after_an_engine_whatever_happens_inside() -> None:
    running = engine(SERVER)
    child = 0

    def fail_inside() -> None:
        nonlocal child
        with running:
            child = child_of(running.log)
            assert alive(child)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    deadline = time.monotonic() + 60
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)


def test_an_engine_that_ends_at_once_shows_its_log() -> None:
    with (
        pytest.raises(EngineError, match="ended with 3:\nno such model"),
        engine("print('no such model'); raise SystemExit(3)"),
    ):
        pass


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_all_of_an_engine_runs_on_its_core_and_moves_with_it(logs: Path) -> None:
    allowed = os.sched_getaffinity(0)
    one, other = sorted(allowed)[:2]
    with engine(SERVER, one) as running:
        child = child_of(running.log)
        assert os.sched_getaffinity(child) == {one}
        running.move(other)
        assert running.core == other
        assert os.sched_getaffinity(child) == {other}
    assert os.sched_getaffinity(0) == allowed
    assert not list(logs.iterdir()), "its log is kept only if something went wrong"


def test_every_arm_has_its_command() -> None:
    specs = {
        arm: arms.arm_spec(
            arm,
            flags=("--enforce-eager",),
            model=None,
            tpot_limit_s=0.15,
            tuned_threshold_tokens=128,
        )
        for arm in arms.ARMS
    }
    commands = {arm: engines.serve_command(spec, 8001) for arm, spec in specs.items()}
    for arm, command in commands.items():
        assert command[1:4] == ["-m", "headway", "serve"]
        assert "--enforce-eager" in command
        stock = arm in {"vllm", "vllm-tuned"}
        assert command[command.index("--policy") + 1] == ("vllm" if stock else arm)
    assert "--long-prefill-token-threshold-adaptive" in commands["vllm-tuned"]
    assert commands["slo"][-2:] == ["--tpot-slo-s", "0.1500"]
    with pytest.raises(ValueError, match="unknown arm"):
        arms.arm_spec("magic", flags=(), model=None, tpot_limit_s=0.15, tuned_threshold_tokens=128)
