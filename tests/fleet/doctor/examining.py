"""Machines, engines and servers for the doctor to examine."""

import http.server
import json
import threading

from headway.fleet.doctor.engines import EngineTarget, Facts
from headway.fleet.net.http_sync import HttpServer
from headway.fleet.plan.spec import Machine

CPU = Machine(cores=(0, 1), gpus=(), memory_gib=16.0, cpu=True)


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
