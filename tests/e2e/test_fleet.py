"""`headway up` with real engines: topologies, context lengths, and every process killed."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import openai
import pytest

from headway.engine import processes

from .conftest import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

READY_S = 240.0
GONE_S = 60.0
UNIFIED = """
[[pool]]
name = "all"
replicas = 2
model = "{model}"
kv_memory_gib = 0.5
flags = [{flags}]
"""
DEDICATED = """
[[pool]]
name = "short"
model = "{model}"
max_prompt_tokens = 256
max_model_len = 512
kv_memory_gib = 0.5
flags = [{flags}]

[[pool]]
name = "long"
model = "{model}"
kv_memory_gib = 0.5
flags = [{flags}]
"""
SPLIT = """
[[pool]]
name = "prefill"
role = "prefill"
model = "{model}"
kv_memory_gib = 0.5
flags = [{flags}]

[[pool]]
name = "decode"
role = "decode"
model = "{model}"
kv_memory_gib = 0.5
flags = [{flags}]
"""
FLAGS = '"--dtype", "float32", "--enforce-eager", "--served-model-name", "tiny"'


class Fleet:
    """A running `headway up`."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.heard = folder / "heard"
        self.seen: set[int] = set()
        self._env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        with self.heard.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headway", "up", *words],
                stdout=sink,
                stderr=sink,
                env=self._env,
                cwd=folder,
                # A test run that is killed takes its fleet along.
                preexec_fn=processes.die_with_parent,  # noqa: PLW1509 -- no thread forks here
            )

    def until(self, sign: str, limit_s: float = READY_S) -> str:
        """Wait until it says so; the first group of `sign`."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            found = re.search(sign, self.heard.read_text(errors="replace"))
            self.look()
            if found:
                return found[found.re.groups]
            assert self.process.poll() is None, "it ended"
            time.sleep(0.2)
        raise AssertionError(f"it never said {sign}")

    def look(self) -> None:
        """Note its processes."""
        self.seen |= processes.descendants(self.process.pid)

    def says(self, *words: str) -> str:
        """What `headway` tells of it."""
        done = subprocess.run(
            [sys.executable, "-m", "headway", *words],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout

    def states(self) -> dict[str, str]:
        """The engines' states by name."""
        told = json.loads(self.says("status", "--json"))
        return {engine["name"]: engine["state"] for engine in told["fleet"]["engines"]}

    def part(self, words: str, engine_port: int) -> int:
        """A process of the engine at this port: its guard, its server, or one below that."""
        tree = processes.descendants(self.process.pid)
        servers = [pid for pid in tree if f"--port {engine_port} " in _line(pid)]
        (guard,) = [pid for pid in servers if "headway.engine.guard" in _line(pid)]
        if words == "guard":
            return guard
        below = processes.descendants(guard)
        found = sorted(pid for pid in below if words in _line(pid))
        return found[0]

    def end(self) -> None:
        """Stop it; nothing of it may be left."""
        self.look()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(GONE_S) == 0
        finally:
            self.process.kill()
            self.process.wait()
            self.gone()

    def gone(self) -> None:
        """Nothing of it is left, soon."""
        end_s = time.monotonic() + GONE_S
        while left := [pid for pid in self.seen if processes.parent_of(pid) is not None]:
            if time.monotonic() > end_s:
                processes.tell(left, signal.SIGKILL)
                raise AssertionError(f"left behind: {left}")
            time.sleep(0.1)


def _line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() + " "
    return ""


@contextlib.contextmanager
def fleet(folder: Path, *words: str):
    running = Fleet(folder, *words)
    try:
        yield running
    except BaseException:
        sys.stderr.write(running.heard.read_text(errors="replace")[-4000:])
        for log in (folder / "state").rglob("*.log"):
            sys.stderr.write(f"\n== {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        running.end()


def written(folder: Path, strategy: str, pools: str, model: Path) -> str:
    """A file for this strategy, on free ports."""
    head = f'[router]\nport = {free_port()}\nadmin_port = {free_port()}\nstrategy = "{strategy}"\n'
    quick = "[router.health]\ninterval_s = 0.5\npasses = 1\n"
    path = folder / "headway.toml"
    path.write_text(head + quick + pools.format(model=model, flags=FLAGS))
    return str(path)


def complete(url: str, prompt, *, model: str = "tiny"):
    """A completion of token ids, four tokens long; the answer and its route."""
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300)
    with client:
        raw = client.completions.with_raw_response.create(
            model=model, prompt=prompt, max_tokens=4, temperature=0
        )
        return raw.parse(), raw.headers["x-headway-route"]


def ids(count: int) -> list[int]:
    return [1000 + n % 997 for n in range(count)]


def test_without_a_file_a_pair_serves_the_bundled_model_to_its_full_context(tmp_path):
    with fleet(tmp_path) as running:
        url = running.until(r"ready: \S+ on (\S+); try")
        with urllib.request.urlopen(url + "/v1/models", timeout=10) as answer:
            (model,) = json.load(answer)["data"]
        assert model["max_model_len"] == 8192
        answer, route = complete(url, ids(8192 - 4), model=model["id"])
        assert answer.usage.prompt_tokens == 8188
        assert answer.usage.completion_tokens == 4
        assert route.startswith('disaggregated; reason="split"')
        assert set(running.states().values()) == {"ready"}
        running.says("down")
        assert running.process.wait(GONE_S) == 0
        running.gone()


def test_pools_have_contexts_of_their_own(tmp_path, tiny_model):
    file = written(tmp_path, "dedicated", DEDICATED, tiny_model)
    with fleet(tmp_path, file) as running:
        url = running.until(r"ready: \S+ on (\S+); try")
        assert 'pools="short"' in complete(url, ids(100))[1]
        answer, route = complete(url, ids(4000))
        assert 'pools="long"' in route
        assert answer.usage.prompt_tokens == 4000


class Traffic:
    """Short streamed requests, one after the other on several threads, until it is told to stop.

    unanswered: those that failed before their first byte. cut: those that failed after it.
    """

    def __init__(self, url: str, threads: int = 3) -> None:
        self._url = url
        self._stop = threading.Event()
        self.answered, self.cut, self.unanswered = 0, 0, []
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        body = {"model": "tiny", "prompt": ids(40), "max_tokens": 30, "stream": True}
        request = urllib.request.Request(
            self._url + "/v1/completions",
            json.dumps(body | {"ignore_eos": True}).encode(),
            {"content-type": "application/json"},
        )
        while not self._stop.is_set():
            got = b""
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    got = answer.read(1)
                    whole = got + answer.read()
                if b'"error"' in whole or b"[DONE]" not in whole:
                    self.cut += 1
                else:
                    self.answered += 1
            except (OSError, http.client.HTTPException) as error:
                if got:
                    self.cut += 1
                else:
                    self.unanswered.append(repr(error))


@pytest.mark.parametrize("pools", [UNIFIED], ids=["unified"])
def test_whatever_is_killed_others_go_on_and_it_comes_back(tmp_path, tiny_model, pools):
    """A request that hasn't got a byte doesn't fail, and the other engine isn't touched."""
    file = written(tmp_path, "unified", pools, tiny_model)
    with fleet(tmp_path, file) as running:
        url = running.until(r"ready: \S+ on (\S+); try")
        told = json.loads(running.says("status", "--json"))["fleet"]["engines"]
        ports = [int(engine["url"].rsplit(":", 1)[1]) for engine in told]
        with Traffic(url) as traffic:
            for number, part in enumerate(["VLLM::Worker", "VLLM::EngineCore", "api_server"]):
                time.sleep(3)
                before = traffic.answered
                os.kill(running.part(part, ports[number % 2]), signal.SIGKILL)
                time.sleep(4)
                assert traffic.answered > before
                wait_ready(running)
        assert traffic.answered > 20
        assert not traffic.unanswered


def test_a_killed_pair_comes_back_and_splits_again(tmp_path, tiny_model):
    file = written(tmp_path, "disaggregated", SPLIT, tiny_model)
    with fleet(tmp_path, file) as running:
        url = running.until(r"ready: \S+ on (\S+); try")
        assert 'reason="split"' in complete(url, ids(300))[1]
        told = json.loads(running.says("status", "--json"))["fleet"]["engines"]
        prefill = int(told[0]["url"].rsplit(":", 1)[1])
        os.kill(running.part("guard", prefill), signal.SIGKILL)
        answer, route = complete(url, ids(300))
        assert answer.usage.completion_tokens == 4
        assert 'reason="split"' not in route
        assert "decode" in route
        wait_ready(running)
        assert 'reason="split"' in complete(url, ids(300))[1]


def wait_ready(running: Fleet) -> None:
    end_s = time.monotonic() + READY_S
    time.sleep(1)
    while set(running.states().values()) != {"ready"}:
        assert time.monotonic() < end_s, running.states()
        running.look()
        time.sleep(1)


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path, tiny_model):
    file = written(tmp_path, "unified", UNIFIED.replace("replicas = 2", "replicas = 1"), tiny_model)
    running = Fleet(tmp_path, file)
    try:
        running.until(r"ready: \S+ on (\S+); try")
    finally:
        running.look()
        running.process.kill()
        running.process.wait()
        running.gone()
