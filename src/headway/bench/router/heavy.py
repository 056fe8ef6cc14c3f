"""A client that sends one shape of body again and again: `python -m headway.bench.router.heavy`.

It gets port, shape, sizes and seconds, makes the body, says `ready`, waits for a line and sends.
When the time is over it says what it was answered: a line of JSON.
"""

import http.client
import json
import socket
import sys
import time
from collections import Counter
from typing import Final

from headway.bench.router.shapes import SHAPES, BodyShape

TIMEOUT_S: Final = 300.0
HOST: Final = "127.0.0.1"


def main() -> None:
    """Send."""
    port, name, size, many, for_s = sys.argv[1:]
    shape = next(each for each in SHAPES if each.name == name)
    body = shape.make(int(many if shape.many else size))
    print("ready", flush=True)  # noqa: T201  whoever started it waits for this line
    sys.stdin.readline()
    began_s, statuses = time.monotonic(), Counter[str]()
    while not statuses or time.monotonic() - began_s < float(for_s):
        statuses[str(_exchange(int(port), shape, body))] += 1
    spent_s = time.monotonic() - began_s
    print(json.dumps({"statuses": statuses, "spent_s": spent_s}), flush=True)  # noqa: T201


def _exchange(port: int, shape: BodyShape, body: bytes) -> int:
    """One request; its answer's status, 0 if there is none."""
    framing = b"content-length: %d\r\n" % len(body)
    if shape.chunked:
        framing = b"transfer-encoding: chunked\r\n"
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%b%b\r\n" % (
        *(shape.path.encode(), shape.fields),
        framing,
    )
    with socket.create_connection((HOST, port), TIMEOUT_S) as link:
        try:
            link.sendall(head)
            link.sendall(body)
            answer = http.client.HTTPResponse(link, method="POST")
            answer.begin()
            answer.read()
        except OSError:
            return 0
        return answer.status


if __name__ == "__main__":
    main()
