"""A process that looks like a vLLM server to a fleet: `fake_engine.py HOME NAME PORT`.

Like vLLM it binds at once, answers once it has "loaded", and has an engine core in a session of
its own. HOME/NAME.json is how it behaves, read again at every look:

start_s: loading takes so long. exit: a status it ends with instead, having said `say`.
mute: /health isn't answered. still: nothing moves. stuck: that, and requests aren't answered.
stubborn: SIGTERM is ignored. answer_s: of a completion; of one that is streamed, after its first
piece.

It listens on FAKE_HOST, where that is set, and then says so; with FAKE_SPREAD what it sees of GPUs
too.

Every process adds a line with its pid to HOME/pids.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOME, NAME, PORT = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
HOST = os.environ.get("FAKE_HOST", "127.0.0.1")
MODEL = "m"


def wants():
    try:
        return json.loads((HOME / f"{NAME}.json").read_text())
    except FileNotFoundError:
        return {}


def sign(role):
    with (HOME / "pids").open("a") as out:
        out.write(f"{os.getpid()} {NAME} {role}\n")


class State:
    running = 0
    tokens = 0
    lock = threading.Lock()
    stopping = False
    core = None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        asked = wants()
        if self.path == "/health":
            while wants().get("mute"):
                time.sleep(0.05)
            self.answer(503 if State.core.poll() is not None else 200, b"")
        elif self.path == "/metrics":
            still = asked.get("stuck") or asked.get("still")
            moves = State.tokens if still else State.tokens + time.monotonic_ns()
            running = max(State.running, bool(asked.get("stuck")))
            text = (
                f'vllm:num_requests_running{{engine="0"}} {float(running)}\n'
                f'vllm:generation_tokens_total{{engine="0"}} {float(moves)}\n'
            )
            self.answer(200, text.encode(), "text/plain")
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"data": [{"id": MODEL, "max_model_len": 99}]}).encode())
        else:
            self.answer(404, b"{}")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        with State.lock:
            State.running += 1
        try:
            while wants().get("stuck"):
                time.sleep(0.05)
            if asked.get("stream"):
                self.stream()
                return
            time.sleep(wants().get("answer_s", 0.0))
            State.tokens += 1
            choice = {"index": 0, "text": NAME, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            self.answer(200, json.dumps({"choices": [choice], "usage": usage}).encode())
        finally:
            with State.lock:
                State.running -= 1

    def stream(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        piece = {"choices": [{"index": 0, "text": NAME, "finish_reason": None}]}
        self.chunk(f"data: {json.dumps(piece)}\n\n".encode())
        time.sleep(wants().get("answer_s", 0.0))
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def chunk(self, body):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
        self.wfile.flush()

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.socket.bind((HOST, PORT))


def on_term(*_):
    if not wants().get("stubborn"):
        State.stopping = True


def main():
    if sys.argv[4:] == ["core"]:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sign("core")
        time.sleep(600)
    signal.signal(signal.SIGTERM, on_term)
    sign("server")
    if "FAKE_HOST" in os.environ:
        print(f"it listens on {HOST}:{PORT}", flush=True)  # noqa: T201  its log
    if "FAKE_SPREAD" in os.environ:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        print("spread, sees", "no" if hidden else "all", "GPUs", flush=True)  # noqa: T201  its log
    asked = wants()
    server = Server((HOST, PORT), Handler, bind_and_activate=False)
    server.server_bind()
    State.core = subprocess.Popen(
        [sys.executable, *sys.argv, "core"], start_new_session=True, stdin=subprocess.DEVNULL
    )
    until = time.monotonic() + asked.get("start_s", 0.0)
    while time.monotonic() < until and not State.stopping:
        time.sleep(0.02)
    if "exit" in asked:
        print(asked.get("say", "it was told to"), flush=True)  # noqa: T201  its log
        os._exit(asked["exit"])
    server.server_activate()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not State.stopping:
        time.sleep(0.02)
    server.socket.close()
    while State.running:
        time.sleep(0.02)
    State.core.terminate()
    State.core.wait()
    os._exit(0)


main()
