"""The router's Prometheus metrics."""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from headway.router.state.engine import EngineState

METRICS_TYPE: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")

_TTFT_S: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 13, 20, 30, 60, 120)
_TPOT_S: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_ADDED_S: Final = (0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1)


class Counts:
    """A counter. All is counted on one thread, so it does without prometheus_client's locks."""

    def __init__(self, name: str, what: str, *labels: str) -> None:
        self._about = (name, what)
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {} if labels else {(): 0}

    def add(self, *values: str) -> None:
        """One more with these labels."""
        counts = self._counts
        counts[values] = counts.get(values, 0) + 1

    def collect(self) -> list[CounterMetricFamily]:
        """What has been counted."""
        family = CounterMetricFamily(*self._about, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count)
        return [family]


class Times:
    """A histogram of seconds; as `Counts`. bounds: of its buckets, upper and included."""

    def __init__(self, name: str, what: str, bounds: tuple[float, ...], *labels: str) -> None:
        self._about = (name, what)
        self._labels = labels
        self._bounds = bounds
        self._sums: dict[tuple[str, ...], float] = {}
        self._counts: dict[tuple[str, ...], list[int]] = {}

    def add(self, seconds: float, *values: str) -> None:
        """One more with these labels."""
        counts = self._counts.get(values)
        if counts is None:
            counts = self._counts[values] = [0] * (len(self._bounds) + 1)
            self._sums[values] = 0.0
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[values] += seconds

    def collect(self) -> list[HistogramMetricFamily]:
        """What has been observed."""
        family = HistogramMetricFamily(*self._about, labels=self._labels)
        names = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]
        for values, counts in self._counts.items():
            buckets = list(zip(names, accumulate(counts), strict=True))
            family.add_metric(values, buckets, self._sums[values])
        return [family]


class Metrics:
    """Counters and histograms of one router, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counts:
            made = Counts(f"headway:router_{name}", what, *labels)
            registry.register(made)
            return made

        def times(name: str, what: str, bounds: tuple[float, ...], *labels: str) -> Times:
            made = Times(f"headway:router_{name}", what, bounds, *labels)
            registry.register(made)
            return made

        self.requests = counter(
            "requests", "Answers, by status; 499: the client left", "endpoint", "length", "status"
        )
        self.slo = counter(
            "slo",
            "Requests that ended, by whether they met all limits (none: they don't count), and why",
            "length",
            "met",
            "verdict",
        )
        self.routes = counter("routes", "Where requests went, and why", "strategy", "reason")
        self.handoffs = counter("handoffs", "Disaggregated requests, by what came of it", "event")
        self.beyond_range = counter(
            "beyond_range", "Asked for outside the client's range", "client", "kind", "done"
        )
        self.retries = counter("retries", "Attempts after the first, by cause", "cause")
        self.truncated = counter("truncated", "Answers that broke off after their first byte")
        self.ttft_s = times(
            "time_to_first_token_seconds",
            "From the request's head to its first byte",
            _TTFT_S,
            "length",
        )
        self.tpot_s = times(
            "time_per_output_token_seconds", "(last - first) / (tokens - 1)", _TPOT_S, "length"
        )
        self.added_s = times(
            "added_seconds", "What the router itself adds, by where", _ADDED_S, "where"
        )
        self._make_gauges()

    def _make_gauges(self) -> None:
        """What is set anew each time the metrics are read."""

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"headway:router_{name}", what, labels, registry=self.registry)

        self.in_flight = gauge("requests_in_flight", "Requests being served")
        self.bodies = gauge("body_bytes", "Request bodies held, each until its answer begins")
        self.engine = gauge("engine", "The router's own work, by engine", "engine", "what")
        self.engine_ready = gauge("engine_ready", "1 if requests may go there", "engine")
        self.engine_degraded = gauge(
            "engine_degraded", "1 if it gets only what no other engine can serve", "engine"
        )
        self.kv_bytes = gauge("kv_moved_bytes", "KV received, as the engine reports", "engine")

    def render(
        self, engines: list[EngineState], now_s: float, *, in_flight: int, body_bytes: int
    ) -> bytes:
        """The text of /metrics."""
        self.in_flight.set(in_flight)
        self.bodies.set(body_bytes)
        for gauge in (self.engine, self.engine_ready, self.engine_degraded, self.kv_bytes):
            gauge.clear()  # an engine that has left isn't told any more
        for engine in engines:
            work = engine.load.work
            for what in ("requests", "prefill_tokens", "decodes", "decode_tokens", "kv_tokens"):
                self.engine.labels(engine.id, what).set(getattr(work, what))
            self.engine_ready.labels(engine.id).set(engine.ready(now_s))
            self.engine_degraded.labels(engine.id).set(engine.health.degraded)
            self.kv_bytes.labels(engine.id).set(engine.report.kv_bytes)
        return bytes(generate_latest(self.registry))
