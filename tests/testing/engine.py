"""A scriptable engine on a socket of its own.

Like vLLM it makes handoffs in prefill legs, pulls them in decode legs, and frees one that a
completion for an unknown model carries. Told nothing, it answers well and at once.
"""

import asyncio
import itertools
import json
from collections import deque
from dataclasses import dataclass, field

from .answers import MODEL, TOKENS, events_of
from .link import Closed, Die, Left, Link
from .oracle import Oracle
from .scenarios import (
    BROKEN,
    COMMENTED,
    CUT,
    EMPTY,
    FIRST_EVENTS,
    FLOODS,
    HEADED,
    REFUSALS,
    SAYS_SO,
    STREAMED_ERROR,
)


@dataclass
class Seen:
    """A generating request as the engine saw it. end: done, fault, cut (the router left)."""

    leg: str
    path: str
    headers: dict
    fields: dict
    raw: bytes
    fault: str
    end: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Stub:
    """One engine.

    script: a fault for each generating request to come; when it is empty, `fault` is for all.
    gap_s: between tokens. prefill_s, release_s: what these take.
    prompt_tokens: what its usage says. sick: /health fails. mute: nothing that is got is answered.
    unlisted: /v1/models fails. adapters: models it serves too.
    gate: a semaphore that each event of a stream waits for.
    """

    def __init__(self, oracle=None):
        self.oracle = oracle or Oracle()
        self.script = deque()
        self.fault = ""
        self.gap_s = 0.0
        self.gate = None
        self.prefill_s = 0.0
        self.release_s = 0.0
        self.prompt_tokens = 7
        self.max_model_len = 8192
        self.sick = self.mute = self.unlisted = False
        self.adapters = ()
        self.health_s = 0.0
        self.progress = 0
        self.seen = []
        self.releases = 0
        self.active = 0
        self.port = 0
        self._server = None
        self._tasks = set()
        self._links = set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def start(self, listening=None):
        """listening: a socket that is bound already."""
        if listening is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        else:
            self._server = await asyncio.start_server(self._serve, sock=listening, backlog=128)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self):
        """Listen no more; what is open stays."""
        self._server.close()

    async def stop(self):
        """Dead: nothing listens, what was open is reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self._links):
            link.reset()
        self.oracle.died(self.port)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        link = Link(reader, writer)
        self._links.add(link)
        try:
            await self._requests(link)
        except Die:
            link.reset()
        except (
            Left,
            Closed,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.CancelledError,
        ):
            pass
        finally:
            self._links.discard(link)
            self._tasks.discard(task)
            await link.close()

    async def _requests(self, link):
        while True:
            await self._one(link, *await link.request())

    async def _one(self, link, method, path, headers, body):
        if self.mute and method == "GET":
            await link.hold()
        elif path == "/health":
            if self.health_s:
                await link.hold(self.health_s)
            link.answer(503 if self.sick else 200, b"")
        elif path == "/metrics":
            link.answer(200, self._metrics(), kind="text/plain")
        elif path == "/v1/models":
            names = () if self.unlisted else (MODEL, *self.adapters)
            models = [{"id": name, "max_model_len": self.max_model_len} for name in names]
            link.answer(500 if self.unlisted else 200, json.dumps({"data": models}).encode())
        elif method == "POST":
            await self._generate(link, path, headers, body)
        else:
            link.answer(404, b"{}")

    def _metrics(self):
        return (
            b'vllm:num_requests_running{engine="0"} %d\n'
            b'vllm:generation_tokens_total{engine="0"} %d\n'
            b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100000"} 1.0\n'
            % (self.active, self.progress)
        )

    async def _generate(self, link, path, headers, body):
        fields = json.loads(body)
        params = fields.get("kv_transfer_params") or {}
        if fields.get("model") != MODEL:
            if params:
                if self.release_s:
                    await link.hold(self.release_s)
                self.releases += 1
                self.oracle.free(params)
            link.answer(404, b'{"error":{"message":"no such model","code":404}}')
            return
        leg = "whole"
        if params.get("do_remote_decode"):
            leg = "prefill"
        elif params:
            leg = "decode"
        fault = self.script.popleft() if self.script else self.fault
        seen = Seen(leg, path, headers, fields, body, fault)
        self.seen.append(seen)
        self.active += 1
        name = self.oracle.sent(params) if leg == "decode" else None
        try:
            await self._answer(link, seen, name)
            seen.end = "fault" if fault else "done"
        except (Die, Closed):
            seen.end = "fault"
            raise
        except BaseException:
            seen.end = "cut"
            if name is not None:  # an abort: the engine pulls no more and says so
                self.oracle.end(name, "released")
            raise
        finally:
            self.active -= 1
            seen.over.set()

    async def _answer(self, link, seen, name):
        fault = seen.fault
        if fault in REFUSALS or fault in FIRST_EVENTS:
            if name is not None:
                self.oracle.end(name, "held")  # the router has it released
            await self._refuse(link, seen)
            return
        if fault == "too long":
            text = "This model's maximum context length is 10 tokens. Use less."
            link.answer(400, json.dumps({"error": {"message": text, "code": 400}}).encode())
            return
        if fault == "hang before head":
            await link.hold()
        if fault == "die before head":
            if name is not None:
                self.oracle.end(name, "lost")
            raise Die
        if self.prefill_s and seen.leg != "decode":
            await link.hold(self.prefill_s)
        if seen.leg == "prefill":
            await self._prefilled(link, seen)
        elif seen.fields.get("stream") and fault != "not streamed":
            await self._stream(link, seen, name)
        else:
            await self._whole(link, seen, name)

    async def _refuse(self, link, seen):
        status = REFUSALS.get(seen.fault, 500)
        error = {"error": {"message": f"the stub says {status}", "code": status}}
        body = json.dumps(error).encode()
        if seen.fault in FIRST_EVENTS and seen.fields.get("stream") and seen.leg != "prefill":
            link.head(200, "text/event-stream")
            if seen.fault == COMMENTED:
                link.chunk(b": one moment\n\n")
                await link.hold(0.01)
                link.chunk(b"\n")
            link.chunk(b"data: " + body + b"\n\ndata: [DONE]\n\n")
            link.end()
            return
        fields = ["retry-after: 7"] if status in {429, 503} else []
        link.answer(status, body, *fields)

    async def _prefilled(self, link, seen):
        params = self.oracle.make(self.port)
        name, fault = params["remote_request_id"], seen.fault
        if fault in {"no params", "null params"}:
            del self.oracle.state[name]
            params = None
        elif fault == "mistyped params":
            params["remote_port"] = str(params["remote_port"])
        elif fault == "params without blocks":
            params["remote_block_ids"] = [[]]
        elif fault == "wrong flag":
            params["do_remote_prefill"] = False
        answer = {"usage": {"prompt_tokens": self.prompt_tokens}, "kv_transfer_params": params}
        if fault == "no params":
            del answer["kv_transfer_params"]
        try:
            await self._send(link, json.dumps(answer).encode(), fault)
        except Left:
            self.oracle.end(name, "released")  # an abort frees it
            raise

    async def _whole(self, link, seen, name):
        text = "".join(f"t{i}" for i in range(TOKENS))
        answer = {
            "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": self.prompt_tokens, "completion_tokens": TOKENS},
            "kv_transfer_params": {"secret": "host"} if name else None,
        }
        if seen.path == "/v1/messages":
            answer["usage"] = {"input_tokens": self.prompt_tokens, "output_tokens": TOKENS}
        await link.hold(self.gap_s * TOKENS) if self.gap_s else None
        await self._send(link, json.dumps(answer).encode(), seen.fault, name)

    async def _send(self, link, body, fault, name=None):
        """An answer that isn't streamed, or a part of it."""
        if fault == FLOODS:
            body = b'{"x":"%b"}' % (b"x" * 30_000_000)
        if fault in EMPTY or fault in CUT or fault == "half json":
            self._pulled(name)
            half = b"" if fault in EMPTY else body[: len(body) // 2]
            if fault == "all but the end":
                half = body[:-1]
            if fault == "half json":
                link.answer(200, half)
                return
            link.head(200, "application/json", at_close=fault.endswith("at close"))
            if half:
                link.chunk(half)
            link.end()
            return
        if fault in {*HEADED, *BROKEN}:
            link.head(200, "application/json", length=len(body))
            if fault in BROKEN:
                self._pulled(name)
                link.write(body[: 1 if fault == "die after first byte" else len(body) // 2])
            await self._stop(link, fault, name)
        self._pulled(name)
        link.answer(200, body)
        if fault == "die after the end":
            await self._stop(link, fault)

    async def _stop(self, link, fault, name=None):
        if fault.startswith("hang"):
            await link.hold()
        if name is not None and fault in HEADED:
            self.oracle.end(name, "lost")
        await asyncio.sleep(0.02)  # what is written must leave before the reset
        raise Die

    def _pulled(self, name):
        if name is not None:
            self.oracle.end(name, "pulled")

    async def _stream(self, link, seen, name):
        fault = seen.fault
        link.head(200, "text/event-stream", at_close=fault.endswith("at close"))
        if fault in HEADED:
            await self._stop(link, fault, name)
        events = list(events_of(seen.path, self.prompt_tokens, secret=name is not None))
        if fault in EMPTY:
            events = [b": one moment\n\n"] if fault == "comments alone" else []
        elif fault in CUT:
            events = events[: -1 if fault == "all but the end" else 2]
        elif fault == FLOODS:
            events = itertools.repeat(b"data: %b\n\n" % (b"x" * 60_000))
        elif fault == SAYS_SO:
            events = [*events[:2], STREAMED_ERROR[seen.path]]
        for index, event in enumerate(events):
            if index and self.gap_s:
                await link.hold(self.gap_s)
            if self.gate:
                await self.gate.acquire()
            self._pulled(name)
            self.progress += 1
            await self._event(link, fault, index, event)
            await link.drain()
        self._pulled(name)
        if fault == "die after the end":
            await self._stop(link, fault)
        link.end()

    async def _event(self, link, fault, index, event):
        if fault == "die after first byte":
            link.chunk(event[:20])  # enough to tell that it is an answer
            await self._stop(link, fault)
        if index == 2 and fault == "die mid-event":
            link.chunk(event[: len(event) // 2])
            await self._stop(link, fault)
        if index == 2 and fault == "hang mid-stream":
            await self._stop(link, fault)
        if index == 2 and fault == "half json":
            event = event[: len(event) // 2] + b"\n\n"
        link.chunk(event)
