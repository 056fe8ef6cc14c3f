"""A router over stub engines, in one event loop, and what must hold when all is over."""

import asyncio
import contextlib
import itertools
import json

import httptools
import uvloop
from tests.testing.answers import MODEL
from tests.testing.engine import Stub
from tests.testing.oracle import Oracle

from headway import config
from headway.router.serve.app import App
from headway.router.state.service import Service
from headway.router.wire.server import serve

from .raw_client import Answer, Wire

USUAL = {"health": {"interval_s": 600.0, "timeout_s": 5.0}, "seed": 1}
"""Health is checked once, and then when a test says so."""
QUICK = {
    "timeouts": {
        "connect_s": 5.0,
        "first_byte_s": 1.0,
        "first_byte_s_per_1k_tokens": 0.0,
        "idle_s": 1.0,
        "total_s": 3.0,
    },
}
"""For engines that hang: limits that end it soon. Without, no limit of time decides a test."""
ENDS = ("used", "released", "expired", "stranded", "failed", "aborted")
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def run(main, limit_s=110):
    """Run a test's coroutine; every task but its own must have ended when it returns."""

    async def bounded():
        async with asyncio.timeout(limit_s):
            await main()
            for _ in range(50):  # callbacks of closed sockets
                left = asyncio.all_tasks() - {asyncio.current_task()}
                if not left:
                    break
                await asyncio.sleep(0.02)
            assert not left

    uvloop.run(bounded())


def body_of(path="/v1/chat/completions", text="hi", **more):
    fields = {"model": MODEL, "max_tokens": 16, **more}
    if path == "/v1/completions":
        fields["prompt"] = text
    elif path == "/v1/responses":
        fields["input"] = text
        fields["max_output_tokens"] = fields.pop("max_tokens")
    else:
        fields["messages"] = [{"role": "user", "content": text}]
    return fields


def wire_bytes(fields, path="/v1/chat/completions", *more):
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    head = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *more, "", ""]
    return "\r\n".join(head).encode() + body


class Fleet:
    """The router and its engines. `engines` of role "both", `prefill`, `decode`: how many."""

    def __init__(
        self,
        engines=0,
        prefill=0,
        decode=0,
        router=None,
        lease_s=30.0,
        pools=None,
        tls=None,
        limits=None,
    ):
        self.oracle = Oracle(lease_s)
        self.lease_s = lease_s
        self.both = [Stub(self.oracle) for _ in range(engines)]
        self.prefill = [Stub(self.oracle) for _ in range(prefill)]
        self.decode = [Stub(self.oracle) for _ in range(decode)]
        self.stubs = [*self.both, *self.prefill, *self.decode]
        self.settings = {**USUAL, **(router or {})}
        self.pools = pools
        self.tls = tls
        self.limits = limits
        self.logged = []
        self.said = []
        self.known = set()
        self.came = 0

    def config(self, *, without=(), **more):
        """The configuration; `without`: stubs left out; `more`: settings of [router]."""
        settings = {**self.settings, **more}
        split = self.prefill or self.decode
        settings.setdefault("strategy", "disaggregated" if split else "unified")
        parts = self.pools or [
            ("engines", "both", self.both, {}),
            ("prefill", "prefill", self.prefill, {}),
            ("decode", "decode", self.decode, {}),
        ]
        pools = []
        for name, role, stubs, limits in parts:
            urls = [stub.url for stub in stubs if stub not in without]
            if urls:
                lease = {"kv_lease_s": self.lease_s}
                pools.append({"name": name, "role": role, "engines": urls, **lease, **limits})
        return config.parse(_toml(settings, pools))

    async def __aenter__(self):
        for stub in self.stubs:
            await stub.start()
        self.service = Service(self.config(), say=self.said.append, log=self.logged.append)
        self.app = App(self.service)
        self.server = await serve(self.answer, "127.0.0.1", 0, self.limits, ssl=self.tls)
        self.service.start()
        self.known |= set(self.service.engines.values())
        await self.until(self.all_healthy)
        await self.until(lambda: not any(engine.upstream.busy for engine in self.known))
        for engine in self.known:
            engine.upstream.discard_idle()
        return self

    async def __aexit__(self, *error):
        try:
            if error[0] is None:
                await self.settled()
        finally:
            await self.server.close(0.2)
            await self.service.stop()
            for stub in self.stubs:
                await stub.stop()

    async def answer(self, request):
        """The router's application; what comes to it is counted."""
        self.came += request.path not in {"/health", "/ready", "/metrics"}
        await self.app(request)

    def reload(self, new):
        self.service.apply(new)
        self.known |= set(self.service.engines.values())

    def skip(self, seconds):
        """From now on the router's clock says this much more."""
        now = self.service.now
        self.service.now = lambda: now() + seconds

    def freeze(self):
        """From now on the router's clock stands still, but for `skip`: what ends after a while
        doesn't.
        """
        at_s = self.service.now()
        self.service.now = lambda: at_s

    def all_healthy(self):
        return all(engine.health.usable for engine in self.service.engines.values())

    def engine(self, stub):
        return next(e for e in self.service.engines.values() if e.id.endswith(f":{stub.port}"))

    async def until(self, condition, limit_s=60.0):
        async with asyncio.timeout(limit_s):
            while not condition():  # noqa: ASYNC110 - stubs and router don't tell
                await asyncio.sleep(0.002)

    async def ask(self, fields=None, path="/v1/chat/completions", *more):
        """One request on a connection of its own; the answer as far as it came."""
        wire = await Wire.open(self.server.port)
        wire.send(wire_bytes(fields or body_of(path), path, "connection: close", *more))
        data = await wire.rest()
        wire.close()
        answer = Answer()
        parser = httptools.HttpResponseParser(answer)
        parser.feed_data(data)
        answer.status = parser.get_status_code()
        return answer

    def count(self, metric, **labels):
        name = f"headway:router_{metric}_total"
        total = 0.0
        for family in self.service.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    total += sample.value
        return total

    def verdicts(self):
        """How many requests ended with which."""
        registry = self.service.metrics.registry
        samples = [s for family in registry.collect() for s in family.samples]
        found = {}
        for sample in samples:
            if sample.name == "headway:router_slo_total":
                verdict = sample.labels["verdict"]
                found[verdict] = found.get(verdict, 0) + int(sample.value)
        return found

    def handoffs(self):
        return {name: self.count("handoffs", event=name) for name in ("started", *ENDS, "fallback")}

    def unsettled(self):
        """What isn't back to zero."""
        service = self.service
        found = [f"{e.id}: {e.load.work}" for e in self.known if any_work(e)]
        found += [f"{e.id}: busy" for e in self.known if e.upstream.busy]
        found += [f"{e.id}: probe" for e in self.known if e.health.breaker._probe]
        found += [f"{stub.port}: active" for stub in self.stubs if stub.active]
        if service.ceiling.in_flight or self.server.requests or service._background:
            found.append("requests or releases in flight")
        if service.bodies.held_bytes:
            found.append(f"{service.bodies.held_bytes} bytes of bodies")
        return found

    async def settled(self):
        """Everything that was started has ended, and every handoff is accounted for."""
        with contextlib.suppress(TimeoutError):
            await self.until(lambda: not self.unsettled())
        assert not self.unsettled()
        assert not self.oracle.problems
        assert self.count("slo") == self.count("requests") == self.came, "one verdict each"
        counts = self.handoffs()
        assert counts["started"] == sum(counts[name] for name in ENDS), counts
        # A prefill answer that met the client's leaving on its way was an abort to the router.
        legs = [seen for stub in self.stubs for seen in stub.seen if seen.leg == "prefill"]
        unheard = counts["aborted"] - sum(seen.end == "cut" for seen in legs)
        # And one that the router gave up may have been finished by the engine all the same.
        given_up = counts["stranded"] + counts["expired"] + counts["failed"]
        known = given_up + max(0, unheard)
        assert len(self.oracle.left) <= known, (self.oracle.state, counts)


def any_work(engine):
    work = engine.load.work
    return any(getattr(work, name) for name in type(work).__slots__)


def _table(name, values):
    """Its own settings first, as TOML wants it."""
    inner = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{k} = {json.dumps(v)}" for k, v in values.items() if k not in inner]
    more = [_table(f"{name}.{json.dumps(key)}", value) for key, value in inner.items()]
    return [f"[{name}]", *lines, *itertools.chain(*more)]


def _toml(settings, pools):
    lines, tables = ["[router]"], []
    for key, value in settings.items():
        if isinstance(value, dict):
            tables += _table(f"router.{key}", value)
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    for pool in pools:
        tables += ["[[pool]]", *(f"{k} = {json.dumps(v)}" for k, v in pool.items())]
    return "\n".join([*lines, *tables]) + "\n"
