"""Figures of cells, and the targets they are held against. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.bench.judge.spread import Spread, ratio, ratios, spread
from headway.bench.report.document import Goal
from headway.bench.router.arms import DIRECT, DISAGGREGATED, HEADWAY, RUST, UNIFIED
from headway.core.slo import percentile

SHORT: Final = "short"
STREAMS: Final = "streams"
ADDED_STREAMS: Final = (64, 512)
MANY_STREAMS: Final = 4_096
KIB: Final = 1_024

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class RouterCell:
    """What one arm did in one cell of one repeat.

    load: `streams` or `short`. streams: at once. rss_bytes: growth since the router was idle.
    """

    arm: str
    mode: str
    load: str
    streams: int
    repeat: int
    figures: Figures


def figures_of(found: Mapping[str, Any], rss_before: int) -> Figures:
    """Figures of a cell from what the load generator found."""
    window, streams = found["window"], found["spec"]["streams"]
    count, cpu_us = window["count"], window["cpu_s"] * 1e6
    figures: Figures = {
        "failures": float(sum(found["failures"].values())),
        "cpu_us": ratio(cpu_us, count),
        "per_s": ratio(count, window["seconds"]),
        "bench_cpu_share": window["bench_cpu_share"],
    }
    if found["spec"]["kind"] == SHORT:
        times_s = found["latency_s"]
    else:
        # Where nothing arrives while the streams run, their own first tokens must do.
        times_s = found["probe_ttft_s"] or found["ramp_ttft_s"]
        figures["alive"] = found["alive"]
        figures["kib_per_stream"] = (found["rss_bytes"] - rss_before) / KIB / streams
    for percent in (50, 99):
        at_s = percentile(times_s, percent)
        figures[f"p{percent}_ms"] = None if at_s is None else at_s * 1e3
    return figures


def values(
    cells: Sequence[RouterCell], arm: str, mode: str, load: str, streams: int, figure: str
) -> list[float | None]:
    """A figure of an arm, by repeat; None where it wasn't measured."""
    found = {
        cell.repeat: cell.figures.get(figure)
        for cell in cells
        if (cell.arm, cell.mode, cell.load, cell.streams) == (arm, mode, load, streams)
    }
    repeats = 1 + max((cell.repeat for cell in cells), default=-1)
    return [found.get(repeat) for repeat in range(repeats)]


def added(
    cells: Sequence[RouterCell], arm: str, mode: str, streams: int, percent: int
) -> list[float | None]:
    """Milliseconds a router adds to the TTFT's percentile, by repeat.

    The same percentile without a router is subtracted, its median over the repeats: that of one
    repeat would carry its own noise into the difference.
    """
    figure = f"p{percent}_ms"
    alone = spread(values(cells, DIRECT, UNIFIED, STREAMS, streams, figure))
    through = values(cells, arm, mode, STREAMS, streams, figure)
    if alone is None:
        return [None] * len(through)
    return [None if each is None else each - alone.value for each in through]


def over_rust(cells: Sequence[RouterCell], load: str, streams: int, figure: str) -> Spread | None:
    """Headway's figure over vllm-router's, repeat by repeat."""
    ours, theirs = (values(cells, arm, UNIFIED, load, streams, figure) for arm in (HEADWAY, RUST))
    return ratios(ours, theirs)


def worst(found: Sequence[Spread | None]) -> Spread | None:
    """The largest; None if none was measured."""
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.value, default=None)


def most(found: Sequence[Spread | None]) -> Spread | None:
    """The largest of all repeats as the value: one failure is one too many."""
    known = [each for each in found if each is not None]
    if not known:
        return None
    highest = max(each.high for each in known)
    return Spread(highest, min(each.low for each in known), highest)


def goals(cells: Sequence[RouterCell], streams: Sequence[int], connections: int) -> list[Goal]:
    """Every target of this benchmark. streams: all that were measured."""
    versus = f"{HEADWAY} / {RUST}"

    def at_most(name: str, bound: float, measured: Spread | None) -> Goal:
        return Goal(name, bound, at_most=True, measured=measured)

    def of_many(figure: str) -> list[Spread | None]:
        return [
            spread(values(cells, HEADWAY, mode, STREAMS, MANY_STREAMS, figure))
            for mode in (UNIFIED, DISAGGREGATED)
        ]

    def ttft(count: int) -> Spread | None:
        ours, theirs = (added(cells, arm, UNIFIED, count, 99) for arm in (HEADWAY, RUST))
        return ratios(ours, theirs)

    token = worst([over_rust(cells, STREAMS, count, "cpu_us") for count in streams])
    rate = over_rust(cells, SHORT, connections, "per_s")
    request = over_rust(cells, SHORT, connections, "cpu_us")
    return [
        at_most(f"CPU per streamed token, {versus}, worst of all stream counts", 0.7, token),
        *(
            at_most(f"added TTFT p99, {versus}, {count} streams", 0.5, ttft(count))
            for count in ADDED_STREAMS
        ),
        Goal(f"requests/s, short, {versus}", 1.2, at_most=False, measured=rate),
        at_most(f"CPU per request, short, {versus}", 0.7, request),
        at_most(f"failures at {MANY_STREAMS} streams, {HEADWAY}", 0.0, most(of_many("failures"))),
        at_most(
            f"memory per stream at {MANY_STREAMS} streams, KiB, {HEADWAY}",
            40.0,
            worst(of_many("kib_per_stream")),
        ),
    ]
