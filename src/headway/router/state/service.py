"""What all requests of one router share, and what a reload changes."""

import asyncio
import itertools
import json
import math
import os
import random
import re
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final

from headway import config as settings
from headway.core.admission import ByteCeiling, Ceiling
from headway.core.client_range import ClientRange
from headway.core.handoff import Count, Handoff, Params
from headway.core.reliability.retry import RetryBudget
from headway.core.routing.length import LengthEstimator
from headway.core.routing.pick import SPARED_TOKENS
from headway.core.routing.prefixes import PrefixMap
from headway.core.routing.route import Route
from headway.core.routing.strategies import STRATEGY_BY_NAME
from headway.core.routing.views import NOTHING_CACHED, PoolView, RequestView
from headway.core.slo import Limits, Slo
from headway.router.openai.beside import BodyReader
from headway.router.openai.token_counter import TokenCounter
from headway.router.state.engine import EngineState, PoolState
from headway.router.state.health import Checker
from headway.router.state.metrics import Metrics
from headway.router.state.receipt import Receipt, receipt_lines
from headway.router.wire import headers as passed
from headway.router.wire.client_request import ClientRequest
from headway.router.wire.engines.names import Names
from headway.router.wire.engines.pool import Timeouts, UpstreamError, UpstreamPool
from headway.router.wire.http1 import JSON_TYPE, Headers

RELEASE_TIMEOUTS: Final = Timeouts(2.0, 5.0, 5.0, 10.0)
RELEASE_MODEL: Final = "headway-releases-a-handoff"
"""No engine serves it, so its API server turns the request away and frees the KV."""
_SAFE_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Service:
    """One router's state. `apply` takes a new configuration without dropping a stream."""

    def __init__(
        self,
        config: settings.Config,
        *,
        say: Callable[[str], None],
        log: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.monotonic,
        names: Names | None = None,
    ) -> None:
        """say: told what happens to engines. log: given a line of JSON for each request.

        names: where engines with names are; by default as the machine's resolver says.
        """
        self.now = now
        self.say = say
        self.log = log
        self._names = names or Names(say=say)
        self.metrics = Metrics()
        self.reader = BodyReader(say)
        self.lengths = LengthEstimator()
        self.tokens: TokenCounter | None = None
        self.prefixes = PrefixMap()
        self.random = random.Random(config.router.seed)
        self.ceiling = Ceiling(config.router.max_concurrent)
        self.bodies = ByteCeiling(config.router.bodies_bytes)
        self.engines: dict[str, EngineState] = {}
        self.pools: list[PoolState] = []
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._watching = False
        self._id_prefix = secrets.token_hex(10)
        self._ids = itertools.count()
        self.apply(config)

    def apply(self, config: settings.Config) -> None:
        """Use these settings from now on. Engines that stay keep their work and their health.

        Raises SettingError for an engine key or a tokenizer that can't be used, OSError for
        certificates that can't; nothing has changed then.
        """
        router = config.router
        engine_key = settings.engine_key(router.keys.engine_key_env, os.environ)
        contexts = [_context(pool) for pool in config.pools]
        tokens = TokenCounter(router.tokenizer) if router.tokenizer else None
        if self.tokens is not None:
            self.tokens.close()
        if (tokens is None) != (self.tokens is None):
            self.lengths = LengthEstimator()  # what was learned counts in another unit
        self.tokens = tokens
        self.config = config
        self.engine_key = engine_key
        self._ranges = router.client_ranges
        self._slo = Slo(router.slo.ttft_s, router.slo.ttft_factor, router.slo.tpot_s)
        self.strategy = STRATEGY_BY_NAME[router.strategy]
        self.ceiling.resize(router.max_concurrent)
        self.bodies.most_bytes = router.bodies_bytes
        self.retries = RetryBudget(router.retries.ratio, router.retries.min_per_s)
        old = self.engines
        self.pools, self.engines = [], {}
        for each, context in zip(config.pools, contexts, strict=True):
            pool = _pool(each)
            for address in each.engines:
                engine_id = f"{each.name}/{address.authority}"
                engine = old.get(engine_id)
                if engine is None or engine.tls != address.tls:
                    engine = self._new_engine(engine_id, pool, address)
                if context is not None and address.tls:
                    engine.upstream.speak(context)
                engine.move(pool)
                pool.engines.append(engine)
                self.engines[engine_id] = engine
            self.pools.append(pool)
        for engine_id, engine in old.items():
            if self.engines.get(engine_id) is not engine:
                self._forget(engine)
        if self._watching:
            self.start()

    def _new_engine(
        self, engine_id: str, pool: PoolState, address: settings.EngineAddress
    ) -> EngineState:
        upstream = UpstreamPool(
            address.host,
            address.port,
            connect_timeout_s=math.inf,  # each call brings the limit that is set now
            names=self._names,
        )
        return EngineState(engine_id, pool, address, upstream)

    def _forget(self, engine: EngineState) -> None:
        """An engine left the configuration: what it is answering goes on, nothing new starts."""
        check = self._checks.pop(engine.id, None)
        if check is not None:
            check.cancel()
        engine.upstream.close()
        self.prefixes.forget(engine.id)

    def start(self) -> None:
        """Watch every engine that isn't watched yet. Needs a running event loop."""
        self._watching = True
        for engine in self.engines.values():
            if engine.id not in self._checks:
                self._checks[engine.id] = asyncio.create_task(self._checker(engine).run())

    def _checker(self, engine: EngineState) -> Checker:
        return Checker(
            engine,
            lambda: self.config.router.health,
            now=self.now,
            say=self.say,
            lines=lambda: self.upstream_lines(()),
            ejected=lambda: self.prefixes.forget(engine.id),
        )

    async def stop(self) -> None:
        """Stop watching, close connections at rest. Releases under way may end."""
        self._watching = False
        self.reader.stop()
        if self.tokens is not None:
            self.tokens.close()
        checks = list(self._checks.values())
        self._checks.clear()
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, *self._background, return_exceptions=True)
        for engine in self.engines.values():
            engine.upstream.close()

    # What a request asks

    def new_id(self) -> str:
        """An id no other request has: this process's own part, then a count."""
        return f"{self._id_prefix}{next(self._ids):012x}"

    def metrics_text(self) -> bytes:
        """What /metrics says."""
        return self.metrics.render(
            list(self.engines.values()),
            self.now(),
            in_flight=self.ceiling.in_flight,
            body_bytes=self.bodies.held_bytes,
        )

    def views(self) -> tuple[PoolView, ...]:
        """The pools as strategies see them now."""
        now_s = self.now()
        return tuple([pool.view(now_s) for pool in self.pools])

    def route(self, request: RequestView) -> Route:
        """Where the strategy sends a request now."""
        return self.strategy.route(request, self.views(), self.now(), self.random.random())

    def ready(self) -> bool:
        """Whether a request could be served now."""
        now_s = self.now()
        return any(e.ready(now_s) and e.pool.role != "prefill" for e in self.engines.values())

    def lacks_model(self, lacking: EngineState, name: str) -> bool:
        """Whether this engine names no such model, and another that is ready does."""
        now_s = self.now()
        return name not in lacking.model_names() and any(
            engine.ready(now_s) and name in engine.model_names() for engine in self.engines.values()
        )

    @property
    def may_split(self) -> bool:
        """Whether a request may be wanted in two legs."""
        return any(pool.role == "decode" for pool in self.pools)

    def limits(
        self, prompt_tokens: int, own_ttft_s: float | None, own_tpot_s: float | None
    ) -> Limits:
        """The client's own limits; else those configured, for a prompt of this length."""
        rate = max([e.load.prefill_tokens_per_s for e in self.engines.values()], default=0.0)
        alone_s = prompt_tokens / rate if rate > 0 else 0.0
        return self._slo.limits(alone_s, own_ttft_s=own_ttft_s, own_tpot_s=own_tpot_s)

    def cached_tokens(
        self, chain: tuple[int, ...], prefix_bytes: int, prompt_tokens: int
    ) -> dict[str, int]:
        """By engine, what it has of the prompt; those that have nothing are left out."""
        if not chain:
            return {}
        known = {name: self.prefixes.match(chain, name) for name in self.engines}
        return {
            name: self.prefixes.cached_tokens(blocks, prefix_bytes, prompt_tokens)
            for name, blocks in known.items()
            if blocks
        }

    def kept_tokens(self, prompt_tokens: int) -> Mapping[str, int]:
        """By engine, about how much is cached there; empty for a prompt too short to matter."""
        if prompt_tokens <= SPARED_TOKENS:
            return NOTHING_CACHED
        return {name: self.prefixes.kept_tokens(name) for name in self.engines}

    def timeouts(self, prompt_tokens: int, *, streams: bool, spent_s: float = 0.0) -> Timeouts:
        """Of one leg. An answer that isn't streamed comes when it is complete.

        spent_s: of the total, which is for the request as a whole.
        """
        limits = self.config.router.timeouts
        first_s = limits.first_byte_s + limits.first_byte_s_per_1k_tokens * prompt_tokens / 1000
        total_s = max(0.0, limits.total_s - spent_s)
        return Timeouts(limits.connect_s, first_s if streams else total_s, limits.idle_s, total_s)

    def allowed(self, client: str) -> ClientRange:
        """What a client with this name may ask for."""
        return self._ranges.get(client) or self._ranges[settings.EVERYONE]

    def upstream_lines(self, headers: Headers, priority: int | None = None) -> bytes:
        """A client's headers as an engine gets them, with an id of its own for each leg."""
        return passed.upstream_lines(
            headers, request_id=self.new_id(), api_key=self.engine_key, priority=priority
        )

    def client_id(self, request: ClientRequest, own: str) -> bytes:
        """The client's correlation id where it sent a sane one, else the request's own."""
        value = dict(request.headers).get(b"x-request-id")
        return value if value is not None and _SAFE_ID.fullmatch(value) else own.encode()

    def answer_lines(self, request: ClientRequest, receipt: Receipt) -> bytes:
        """What the head of every answer says about its request."""
        line = b"x-request-id: %b\r\n" % self.client_id(request, receipt.request_id)
        return line + receipt_lines(receipt) if self.config.router.receipt else line

    def release(self, handoff: Handoff, params: Params, engine: EngineState | None) -> None:
        """Have the prefill engine told that nobody will pull this KV, in the background.

        engine: the decode engine that tells it, if there is one.
        """
        task = asyncio.create_task(self._release(handoff, params, engine))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _release(self, handoff: Handoff, params: Params, engine: EngineState | None) -> None:
        freed = False
        if engine is not None:
            body = {"model": RELEASE_MODEL, "prompt": "-", "max_tokens": 1}
            sent = json.dumps({**body, "kv_transfer_params": dict(params)}).encode()
            lines = self.upstream_lines([JSON_TYPE])
            try:
                call = await engine.upstream.send(
                    "POST", b"/v1/completions", lines, sent, RELEASE_TIMEOUTS, resend=False
                )
                await call.read(1 << 20)
                freed = call.status == 404
            except UpstreamError:
                freed = False
        for action in handoff.release_ended(self.now(), freed=freed):
            if isinstance(action, Count):
                self.metrics.handoffs.add(action.name)


def _context(pool: settings.Pool) -> ssl.SSLContext | None:
    """How its engines are spoken to with TLS; None where none of them wants that."""
    return settings.engine_tls(pool.tls) if any(each.tls for each in pool.engines) else None


def _pool(described: settings.Pool) -> PoolState:
    """A pool as a configuration describes it, still without engines."""
    return PoolState(
        described.name,
        described.role,
        described.max_prompt_tokens,
        described.max_model_len,
        described.kv_capacity_tokens,
        described.kv_lease_s,
    )
