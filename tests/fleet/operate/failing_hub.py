"""`failing_hub.py CASES`: what comes of asking a hub that refuses, as transformers raises it.

CASES is JSON: a model's name to the status and headers of the hub's answers, or to null where there
is no hub. Standard output is JSON: the name to the traceback.
"""

import http.server
import json
import os
import sys
import tempfile
import threading
import time
import traceback

CASES = json.loads(sys.argv[1])


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers by the model that is asked for."""

    def do_HEAD(self):
        owner, name = self.path.split("/")[1:3]
        status, headers = CASES[f"{owner}/{name}"]
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{hub.server_port}"
    os.environ["HF_HOME"] = tempfile.mkdtemp()
    from transformers.utils.hub import cached_file

    time.sleep = lambda _: None  # huggingface_hub tries again, ever later
    told = {}
    for name in sorted(CASES, key=lambda name: CASES[name] is None):
        if CASES[name] is None:
            hub.shutdown()
            hub.server_close()
        try:
            cached_file(name, "config.json")
        except Exception:  # noqa: BLE001 -- whatever it is, is what is asked for
            told[name] = traceback.format_exc()
    print(json.dumps(told))  # noqa: T201 -- what the test reads


main()
