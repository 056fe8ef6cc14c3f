"""The load generator: one process for one cell, raw protocols, counts and clocks only.

Started with its `Spec` as JSON; prints what it found as JSON. It reads the router's CPU time
itself, so that it belongs to the very tokens it counted.
"""

import asyncio
import gc
import json
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import uvloop

from headway.bench.engines.processes import cpu_s, rss_bytes
from headway.bench.router.client import Client

HOST: Final = "127.0.0.1"
_PROBES: Final = 16
"""Connections opened before probes start."""
_TAIL_S: Final = 30.0
"""How much longer than planned a stream may take."""
_OPENING_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Spec:
    """One cell.

    kind: `streams`: that many at once, each `gap_s` between tokens, begun over `ramp_s`;
        then nothing begins for `window_s`, in which CPU and tokens are counted; then short
        streams arrive for `probe_s`, Poisson, `probes_per_s`, whose first tokens are timed.
        `short`: that many connections, each with one request after the other, for `window_s`.
    pids: the router's processes; others: theirs whose load is to be known as well.
    """

    kind: str
    port: int
    streams: int
    window_s: float
    pids: tuple[int, ...]
    others: tuple[int, ...] = ()
    gap_s: float = 0.05
    ramp_s: float = 1.0
    settle_s: float = 1.0
    probe_s: float = 0.0
    probes_per_s: float = 0.0
    prompt_bytes: int = 1_000
    seed: int = 1


class CellLoad:
    """One cell under way. tokens: events of streams so far."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.tokens = 0
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(spec.seed)
        self._failures: dict[str, int] = {}
        self._made = 0

    async def run(self) -> dict[str, Any]:
        """The cell's figures."""
        kinds = {"streams": self._streams, "short": self._short}
        found = await kinds[self.spec.kind]()
        return {**found, "failures": self._failures}

    def request(self, tokens: int, gap_s: float) -> bytes:
        """A chat request whose prompt no other has. tokens: 0 for one that isn't streamed."""
        self._made += 1
        words = f"{self.spec.seed}-{self._made} " + "word " * (self.spec.prompt_bytes // 5)
        fields = {
            "model": "stub",
            "messages": [{"role": "user", "content": words}],
            "max_tokens": max(1, tokens),
            "seed": round(gap_s * 1e3),
            "temperature": 0.0,
            **({"stream": True} if tokens else {}),
        }
        body = json.dumps(fields).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
            b"content-type: application/json\r\nuser-agent: load\r\naccept: */*\r\n"
            b"content-length: %d\r\n\r\n%b" % (self.spec.port, len(body), body)
        )

    async def _connect(self) -> Client:
        _, client = await self._loop.create_connection(
            lambda: Client(self._count), HOST, self.spec.port
        )
        return client

    def _count(self, events: int) -> None:
        self.tokens += events

    def _fail(self, why: str) -> None:
        self._failures[why] = self._failures.get(why, 0) + 1

    async def _window(self, counted: Callable[[], int]) -> dict[str, float]:
        """Wait; what was counted meanwhile, what it cost, how busy the others were."""
        spec = self.spec
        began_s, cpu, other = time.perf_counter(), cpu_s(spec.pids), cpu_s(spec.others)
        own_s, count = time.process_time(), counted()
        await asyncio.sleep(spec.window_s)
        passed_s = time.perf_counter() - began_s
        return {
            "seconds": passed_s,
            "count": counted() - count,
            "cpu_s": cpu_s(spec.pids) - cpu,
            "bench_cpu_share": (cpu_s(spec.others) - other + time.process_time() - own_s)
            / passed_s,
        }

    async def _streams(self) -> dict[str, Any]:
        spec = self.spec
        length_s = spec.ramp_s + spec.settle_s + spec.window_s + spec.probe_s + 1.0
        tokens = math.ceil(length_s / spec.gap_s)
        ramp_ttft_s: list[float] = []
        begun_s = self._loop.time()
        streams = [
            asyncio.create_task(self._stream(i * spec.ramp_s / spec.streams, tokens, ramp_ttft_s))
            for i in range(spec.streams)
        ]
        await asyncio.sleep(spec.ramp_s + spec.settle_s)
        window = await self._window(lambda: self.tokens)
        alive = sum(not stream.done() for stream in streams)
        rss = rss_bytes(spec.pids)
        probe_ttft_s = await self._probes() if spec.probe_s else []
        limit_s = begun_s + spec.ramp_s + length_s + _TAIL_S - self._loop.time()
        _, late = await asyncio.wait(streams, timeout=limit_s)
        for stream in late:
            self._fail("unfinished")
            stream.cancel()
        return {
            "window": window,
            "alive": alive,
            "rss_bytes": rss,
            "tokens_each": tokens,
            "ramp_ttft_s": ramp_ttft_s,
            "probe_ttft_s": probe_ttft_s,
        }

    async def _stream(self, after_s: float, tokens: int, ttft_s: list[float]) -> None:
        """One of the long streams."""
        await asyncio.sleep(after_s)
        try:
            async with asyncio.timeout(_OPENING_S):
                client = await self._connect()
        except OSError as error:
            self._fail(f"connect: {type(error).__name__}")
            return
        await self._exchange(client, tokens, self.spec.gap_s, ttft_s)
        client.close()

    async def _exchange(
        self, client: Client, tokens: int, gap_s: float, ttft_s: list[float]
    ) -> None:
        ended: asyncio.Future[str | None] = self._loop.create_future()

        def on_end(failure: str | None) -> None:
            if not ended.done():
                ended.set_result(failure)

        client.send(self.request(tokens, gap_s), tokens, on_end)
        failure = await ended
        if failure is None:
            ttft_s.append(client.ttft_s)
        else:
            self._fail(failure)

    async def _probes(self) -> list[float]:
        """First tokens of short streams that arrive while the long ones run."""
        spec, found = self.spec, list[float]()
        idle = [await self._connect() for _ in range(_PROBES)]
        probes = []
        due_s, end_s = time.perf_counter(), time.perf_counter() + spec.probe_s
        while (due_s := due_s + self._random.expovariate(spec.probes_per_s)) < end_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            probes.append(asyncio.create_task(self._probe(idle, found)))
        await asyncio.wait(probes, timeout=_TAIL_S)
        for client in idle:
            client.close()
        return found

    async def _probe(self, idle: list[Client], found: list[float]) -> None:
        client = idle.pop() if idle else await self._connect()
        await self._exchange(client, 2, 0.01, found)
        if client.open:
            idle.append(client)

    async def _short(self) -> dict[str, Any]:
        """Closed loop: the next request of a connection goes out when the answer is there."""
        clients = [await self._connect() for _ in range(self.spec.streams)]
        answered, stopping, latency_s = 0, False, list[float]()
        ended = asyncio.Event()
        left = len(clients)
        measuring = False

        def start(client: Client) -> None:
            def on_end(failure: str | None) -> None:
                nonlocal answered, left
                if failure is None:
                    answered += 1
                    if measuring:
                        latency_s.append(time.perf_counter() - begun_s)
                else:
                    self._fail(failure)
                if stopping or not client.open:
                    left -= 1
                    if not left:
                        ended.set()
                else:
                    self._loop.call_soon(start, client)

            begun_s = time.perf_counter()
            client.send(self.request(0, 0.0), 0, on_end)

        for client in clients:
            start(client)
        await asyncio.sleep(self.spec.settle_s)
        measuring = True
        window = await self._window(lambda: answered)
        stopping = True
        try:
            async with asyncio.timeout(_TAIL_S):
                await ended.wait()
        except TimeoutError:
            self._fail("unfinished")
        for client in clients:
            client.close()
        return {"window": window, "latency_s": latency_s}


async def _main(spec: Spec) -> None:
    gc.collect()
    gc.freeze()
    gc.disable()
    found = await CellLoad(spec).run()
    json.dump({"spec": asdict(spec), **found}, sys.stdout)


if __name__ == "__main__":
    uvloop.run(_main(Spec(**json.loads(sys.argv[1]))))
