"""Stands for a vLLM server: says what vLLM says while it starts, then answers a few paths.

`talking_engine.py PORT SCRIPT`; SCRIPT: `good`, or `fails` with the error of a start that does.
"""

import http.server
import json
import sys
import time

SAID = """\
(EngineCore pid=1) INFO 11-29 22:54:48 [core.py:133] Initializing a V1 LLM engine (v0.32.0) \
with config: model='m', device_config=cpu, compilation_config={'mode': <CompilationMode.NONE: 0>, \
'cudagraph_mode': <CUDAGraphMode.NONE: 0>, 'max_cudagraph_capture_size': None}
(Worker pid=2) INFO 11-29 22:55:00 [cpu_model_runner.py:68] Starting to load model m...
Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  3.13it/s]
INFO:     Application startup complete.
"""
FAILED = """\
(Worker pid=2) ERROR 11-29 22:55:00 [multiproc_executor.py:900] Traceback (most recent call last):
(Worker pid=2) ERROR 11-29 22:55:00 [multiproc_executor.py:900]   File "x.py", line 1, in f
(Worker pid=2) ERROR 11-29 22:55:00 [multiproc_executor.py:900] ValueError: No available memory \
for the cache blocks. Try increasing
"""
METRICS = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
ANSWERS = {
    "/health": "",
    "/metrics": METRICS,
    "/v1/models": json.dumps({"data": [{"id": "m", "max_model_len": 1000}]}),
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ANSWERS.get(self.path)
        self.answer(404 if body is None else 200, body or "")

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        choice = {"index": 0, "text": "yes", "finish_reason": "stop"}
        self.answer(200, json.dumps({"id": "1", "object": "x", "model": "m", "choices": [choice]}))

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


def main(port, script):
    if script == "fails":
        sys.stdout.write(FAILED)
        return 1
    said, over, rest = SAID.partition("INFO:   ")
    sys.stdout.write(said)
    sys.stdout.flush()
    time.sleep(1.5)  # what it says is looked at once a second
    sys.stdout.write(over + rest)
    sys.stdout.flush()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
