"""A scriptable engine on a socket of its own.

Like vLLM it makes handoffs in prefill legs, pulls them in decode legs, and frees one that a
completion for an unknown model carries. Told nothing, it answers well and at once.
"""

import asyncio
import json
from collections import deque

from .answers import MODEL
from .leg import Leg, Seen
from .link import Closed, Die, Left, Link
from .oracle import Oracle


class Stub:
    """One engine.

    script: a scenario's name for each generating request to come; when it is empty, `fault` is
    for all.
    gap_s: between tokens. prefill_s, release_s: what these take.
    prompt_tokens: what its usage says. sick: /health fails. mute: nothing that is got is answered.
    unlisted: /v1/models fails. adapters: models it serves too.
    gate: a semaphore that each event of a stream waits for, and each handoff that is made.
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
            await Leg(self, link, seen, name).answer()
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
