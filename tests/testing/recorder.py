"""An engine that writes down what it gets, byte for byte, and answers as vLLM does."""

import asyncio
import itertools
import json

from .engine import Stub
from .link import Die, Left
from .vllm_answers import answer, usual


class Seen:
    """One request as the engine got it."""

    def __init__(self, request, body):
        self.method = request.method
        self.path = request.path
        self.query = request.query
        self.headers = request.headers
        self.length = request.length
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    def field(self, name):
        return next((value for key, value in self.headers if key == name), None)

    @property
    def params(self):
        return self.json.get("kv_transfer_params") or {}

    @property
    def prefills(self):
        return bool(self.params.get("do_remote_decode"))


class Exchange:
    """One request, and its answer as it is written."""

    def __init__(self, link, method, target, fields, body):
        self.method = method.decode()
        path, _, self.query = target.partition(b"?")
        self.path = path.decode("latin-1")
        self.headers = tuple(fields)
        sizes = [int(value) for name, value in fields if name == b"content-length"]
        self.length = sizes[0] if sizes else None
        self.body = body
        self.started = self.finished = False
        self.ends_connection = False
        self._link = link
        self._chunked = False

    def respond(self, status, headers, body):
        """A whole answer."""
        self.start(status, headers, length=len(body))
        if self.method != "HEAD":
            self.write(body)
        self.finish()

    def start(self, status, headers, *, length=None):
        """Its head; a body without a length comes in chunks."""
        self.started = True
        self._chunked = length is None
        framing = b"transfer-encoding: chunked"
        if length is not None:
            framing = b"content-length: %d" % length
        lines = [b"HTTP/1.1 %d X" % status, *(b"%b: %b" % field for field in headers), framing]
        self._link.write(b"\r\n".join([*lines, b"", b""]))

    def write(self, data):
        """A part of its body."""
        self._link.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else data)

    def finish(self):
        """It is complete."""
        self.finished = True
        if self._chunked:
            self._link.write(b"0\r\n\r\n")

    def abort(self):
        """The connection ends here."""
        self.finished = self.ends_connection = True


class RecordingEngine(Stub):
    """Speaks as much of vLLM as a router asks for.

    `script(request, seen)`, if set, answers first; what it leaves unanswered gets the usual.
    left: how often the router left before its answer was complete.
    """

    def __init__(self, model="m", max_model_len=8192):
        super().__init__()
        self.model = model
        self.max_model_len = max_model_len
        self.script = None
        self.health = 200
        self.metrics = b""
        self.left = 0
        self.handoffs = itertools.count(1)

    @property
    def legs(self):
        """Generating requests, but for those that only release a handoff."""
        return [s for s in self.seen if s.method == "POST" and s.json.get("model") == self.model]

    async def _requests(self, link):
        while True:
            request = Exchange(link, *await link.raw_request())
            await self._exchange(link, request)
            await link.drain()
            if request.ends_connection:
                await asyncio.sleep(0.02)  # what is written must leave before the end
                raise Die

    async def _exchange(self, link, request):
        if request.path == "/health":
            request.respond(self.health, [], b"")
        elif request.path == "/metrics":
            request.respond(200, [], self.metrics)
        elif request.path == "/v1/models" and request.method == "GET":
            model = {"id": self.model, "object": "model", "max_model_len": self.max_model_len}
            answer(request, {"object": "list", "data": [model]})
        else:
            await self._recorded(link, request)

    async def _recorded(self, link, request):
        seen = Seen(request, request.body)
        self.seen.append(seen)
        if self.script is not None:
            await self._scripted(link, request, seen)
        if not request.started and not request.finished:
            usual(self, request, seen)

    async def _scripted(self, link, request, seen):
        serving = asyncio.ensure_future(self.script(request, seen))
        leaving = asyncio.ensure_future(link.hold())
        try:
            await asyncio.wait([serving, leaving], return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() and not request.finished:
                serving.cancel()
                self.left += 1
                raise Left
            await serving
        finally:
            leaving.cancel()
            await asyncio.gather(serving, leaving, return_exceptions=True)
