"""One leg of a request at a stub engine: answered as its scenario says."""

import asyncio
import json
from dataclasses import dataclass, field

from .answers import TOKENS, events_of
from .link import Die, Left
from .scenarios import AT_CLOSE, END, HEAD, SCENARIOS, WHOLE


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


class Leg:
    """A request under way. name: of the handoff that it pulls, if it does."""

    def __init__(self, engine, link, seen, name):
        self._engine = engine
        self._link = link
        self._seen = seen
        self._name = name
        self._scenario = SCENARIOS[seen.fault]

    async def answer(self):
        """All of it. Raises Die where the connection is to be reset, Left where the router left."""
        engine, seen, scenario = self._engine, self._seen, self._scenario
        if scenario.refusal:
            await self._refuse(scenario.refusal)
            return
        if scenario.silent == "hang":
            await self._link.hold()
        if scenario.silent == "die":
            self._ends("lost")
            raise Die
        if engine.prefill_s and seen.leg != "decode":
            await self._link.hold(engine.prefill_s)
        if seen.leg == "prefill":
            await self._prefilled()
        elif seen.fields.get("stream") and scenario.streams:
            await self._stream()
        else:
            await self._whole()

    async def _refuse(self, refusal):
        link, seen, status = self._link, self._seen, refusal.status
        message = refusal.message.format(status=status)
        if refusal.another_may_pull:
            self._ends("held")  # or the router has it released
        body = json.dumps({"error": {"message": message, "code": status}}).encode()
        if refusal.in_stream and seen.fields.get("stream") and seen.leg != "prefill":
            link.head(200, "text/event-stream")
            if refusal.comment:
                link.chunk(b": one moment\n\n")
                await link.hold(0.01)
                link.chunk(b"\n")
            link.chunk(b"data: " + body + b"\n\ndata: [DONE]\n\n")
            link.end()
            return
        fields = ["retry-after: 7"] if status in {429, 503} else []
        link.answer(status, body, *fields)

    async def _prefilled(self):
        engine, scenario = self._engine, self._scenario
        if engine.gate:
            await engine.gate.acquire()
        made = engine.oracle.make(engine.port)
        name, params = made["remote_request_id"], scenario.params(made)
        if params is None:
            del engine.oracle.state[name]
        answer = {"usage": {"prompt_tokens": engine.prompt_tokens}}
        if scenario.names_params:
            answer["kv_transfer_params"] = params
        try:
            await self._send(json.dumps(answer).encode())
        except Left:
            engine.oracle.end(name, "released")  # an abort frees it
            raise

    async def _whole(self):
        engine = self._engine
        text = "".join(f"t{i}" for i in range(TOKENS))
        answer = {
            "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": engine.prompt_tokens, "completion_tokens": TOKENS},
            "kv_transfer_params": {"secret": "host"} if self._name else None,
        }
        if self._seen.path == "/v1/messages":
            answer["usage"] = {"input_tokens": engine.prompt_tokens, "output_tokens": TOKENS}
        if engine.gap_s:
            await self._link.hold(engine.gap_s * TOKENS)
        await self._send(json.dumps(answer).encode())

    async def _send(self, body):
        """An answer that isn't streamed, or a part of it."""
        link, scenario, stop = self._link, self._scenario, self._scenario.stop
        body = scenario.body(body)
        if stop and stop.at != END:
            link.head(200, "application/json", length=len(body))
            if stop.at != HEAD:
                self._ends("pulled")
                link.write(stop.of_body(body))
            await self._stop(stop)
        self._ends("pulled")
        if scenario.framing == WHOLE:
            link.answer(200, body)
        else:
            link.head(200, "application/json", at_close=scenario.framing == AT_CLOSE)
            if body:
                link.chunk(body)
            link.end()
        if stop:
            await self._stop(stop)

    async def _stream(self):
        engine, link, scenario = self._engine, self._link, self._scenario
        stop = scenario.stop
        link.head(200, "text/event-stream", at_close=scenario.framing == AT_CLOSE)
        if stop and stop.at == HEAD:
            await self._stop(stop)
        path, secret = self._seen.path, self._name is not None
        right = list(events_of(path, engine.prompt_tokens, secret=secret))
        for index, event in enumerate(scenario.events(path, right)):
            if index and engine.gap_s:
                await link.hold(engine.gap_s)
            if engine.gate:
                await engine.gate.acquire()
            self._ends("pulled")
            engine.progress += 1
            if stop and not stop.at and index == stop.event:
                if part := stop.of_event(event):
                    link.chunk(part)
                await self._stop(stop)
            link.chunk(event)
            await link.drain()
        self._ends("pulled")
        if stop:
            await self._stop(stop)
        link.end()

    async def _stop(self, stop):
        if stop.hangs:
            await self._link.hold()
        if stop.at == HEAD:
            self._ends("lost")
        await asyncio.sleep(0.02)  # what is written must leave before the reset
        raise Die

    def _ends(self, state):
        """What became of the handoff it pulls."""
        if self._name is not None:
            self._engine.oracle.end(self._name, state)
