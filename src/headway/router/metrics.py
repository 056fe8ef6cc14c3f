"""The router's Prometheus metrics."""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
)

from headway.router.state import Engine

METRICS_TYPE: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")

Kind = TypeVar("Kind", Counter, Histogram)

_TTFT_S: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 13, 20, 30, 60, 120)
_TPOT_S: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_ADDED_S: Final = (0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1)


class Series(Generic[Kind]):
    """A metric's series by labels, each made once: making one costs more than counting."""

    def __init__(self, metric: Kind) -> None:
        self._metric = metric
        self._made: dict[tuple[str, ...], Kind] = {}

    def collect(self) -> Iterable[Metric]:
        """What has been counted."""
        return list(self._metric.collect())

    def labels(self, *values: str) -> Kind:
        """The series of these labels."""
        made = self._made.get(values)
        if made is None:
            made = self._made[values] = self._metric.labels(*values)
        return made


class Metrics:
    """Counters and histograms of one router, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Series[Counter]:
            return Series(Counter(f"headway:router_{name}", what, labels, registry=registry))

        def histogram(
            name: str, what: str, buckets: tuple[float, ...], *labels: str
        ) -> Series[Histogram]:
            return Series(
                Histogram(
                    f"headway:router_{name}", what, labels, buckets=buckets, registry=registry
                )
            )

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"headway:router_{name}", what, labels, registry=registry)

        self.requests = counter(
            "requests", "Answers, by status; 499: the client left", "endpoint", "length", "status"
        )
        self.slo = counter("slo", "Requests sent, by whether they met all limits", "length", "met")
        self.routes = counter("routes", "Where requests went, and why", "strategy", "reason")
        self.handoffs = counter("handoffs", "Disaggregated requests, by what came of it", "event")
        self.retries = counter("retries", "Attempts after the first, by cause", "cause")
        self.truncated = Counter(
            "headway:router_truncated",
            "Answers that broke off after their first byte",
            registry=registry,
        )
        self.ttft_s = histogram(
            "time_to_first_token_seconds",
            "From the request's head to its first byte",
            _TTFT_S,
            "length",
        )
        self.tpot_s = histogram(
            "time_per_output_token_seconds", "(last - first) / (events - 1)", _TPOT_S, "length"
        )
        self.added_s = histogram(
            "added_seconds", "What the router itself adds, by where", _ADDED_S, "where"
        )
        self.in_flight = gauge("requests_in_flight", "Requests being served")
        self.engine = gauge("engine", "The router's own work, by engine", "engine", "what")
        self.engine_ready = gauge("engine_ready", "1 if requests may go there", "engine")
        self.kv_bytes = gauge("kv_moved_bytes", "KV received, as the engine reports", "engine")

    def render(self, engines: list[Engine], now_s: float, in_flight: int) -> bytes:
        """The text of /metrics."""
        self.in_flight.set(in_flight)
        for gauge in (self.engine, self.engine_ready, self.kv_bytes):
            gauge.clear()  # an engine that has left isn't told any more
        for engine in engines:
            work = engine.work
            for what in ("requests", "prefill_tokens", "decodes", "decode_tokens", "kv_tokens"):
                self.engine.labels(engine.id, what).set(getattr(work, what))
            self.engine_ready.labels(engine.id).set(engine.ready(now_s))
            self.kv_bytes.labels(engine.id).set(engine.report.kv_bytes)
        return bytes(generate_latest(self.registry))
