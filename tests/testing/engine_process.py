"""A process that looks like a vLLM server to a fleet: `engine_process.py HOME NAME PORT`.

Like vLLM it binds at once, answers once it has "loaded", and has an engine core in a session of
its own. HOME/NAME.json is how it behaves, read again at every look:

start_s: loading takes so long. loads: it doesn't end while that is set.
says: what it says when it begins to load, and when it is up.
exit: a status it ends with instead, having said `say`.
mute: /health isn't answered. still: nothing moves. stuck: that, and requests aren't answered.
stubborn: SIGTERM is ignored. answer_s: of a completion; of one that is streamed, after its first
piece. holds: none of either ends while that is set; "streams": none that is streamed.

It listens on FAKE_HOST, where that is set, and then says so; with FAKE_SPREAD what it sees of GPUs
too.

Every process adds a line with its pid to HOME/pids.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.testing.engine import Stub

HOME, NAME, PORT = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
HOST = os.environ.get("FAKE_HOST", "127.0.0.1")
AGAIN_S = 0.02


def wanted():
    try:
        return json.loads((HOME / f"{NAME}.json").read_text())
    except FileNotFoundError:
        return {}


def wants(what, usual=None):
    return wanted().get(what, usual)


def sign(role):
    with (HOME / "pids").open("a") as out:
        out.write(f"{os.getpid()} {NAME} {role}\n")


def say(text):
    print(text, flush=True)  # noqa: T201  its log


class ProcessEngine(Stub):
    """The stub engine, as the file says at the moment."""

    def __init__(self, core):
        super().__init__()
        self.core = core
        self.tokens = 0

    async def _one(self, link, method, path, headers, body):
        if path == "/health":
            while wants("mute"):
                await link.hold(AGAIN_S)
            link.answer(503 if self.core.poll() is not None else 200, b"")
        else:
            self.max_model_len = 99
            await super()._one(link, method, path, headers, body)

    def _metrics(self):
        still = wants("stuck") or wants("still")
        moves = self.tokens if still else self.tokens + time.monotonic_ns()
        return (
            b'vllm:num_requests_running{engine="0"} %f\nvllm:num_requests_waiting{engine="0"} 0\n'
            b'vllm:generation_tokens_total{engine="0"} %f\n'
            % (max(self.active, bool(wants("stuck"))), moves)
        )

    async def _generate(self, link, path, headers, body):
        self.active += 1
        try:
            while wants("stuck"):
                await link.hold(AGAIN_S)
            if json.loads(body).get("stream"):
                await self._two_pieces(link)
                return
            await link.hold(wants("answer_s", 0.0))
            while wants("holds") is True:
                await link.hold(AGAIN_S)
            self.tokens += 1
            choice = {"index": 0, "text": NAME, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            answer = {"id": "1", "object": "x", "model": "m", "choices": [choice], "usage": usage}
            link.answer(200, json.dumps(answer).encode())
        finally:
            self.active -= 1

    async def _two_pieces(self, link):
        link.head(200, "text/event-stream")
        piece = {"choices": [{"index": 0, "text": NAME, "finish_reason": None}]}
        link.chunk(f"data: {json.dumps(piece)}\n\n".encode())
        await link.hold(wants("answer_s", 0.0))
        while wants("holds"):
            await link.hold(AGAIN_S)
        link.chunk(b"data: [DONE]\n\n")
        link.end()


def bound():
    """A socket that has its port before anything is loaded."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind((HOST, PORT))
    return listening


async def run(listening, core):
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: wants("stubborn") or stopping.set())
    before, after = wants("says", ["", ""])
    if before:
        say(before)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), wants("start_s", 0.0))
    while wants("loads") and not stopping.is_set():  # noqa: ASYNC110  a file tells
        await asyncio.sleep(AGAIN_S)
    how = wanted()
    if how.get("exit") is not None:
        say(how.get("say", "it was told to"))
        os._exit(how["exit"])
    engine = ProcessEngine(core)
    await engine.start(listening)
    if after:
        say(after)
    await stopping.wait()
    engine.close()
    while engine.active:  # noqa: ASYNC110  what is awaited has no event
        await asyncio.sleep(AGAIN_S)
    core.terminate()
    core.wait()
    os._exit(0)


def main():
    if sys.argv[4:] == ["core"]:
        sign("core")
        time.sleep(600)
    sign("server")
    if "FAKE_HOST" in os.environ:
        say(f"it listens on {HOST}:{PORT}")
    if "FAKE_SPREAD" in os.environ:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        say(f"spread, sees {'no' if hidden else 'all'} GPUs")
    listening = bound()
    core = subprocess.Popen(
        [sys.executable, *sys.argv, "core"], start_new_session=True, stdin=subprocess.DEVNULL
    )
    asyncio.run(run(listening, core))


main()
