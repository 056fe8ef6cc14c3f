"""How many requests a second an engine serves within their limits, arm by arm.

Open-loop Poisson traffic, 8% of it long prompts, at several rates. Every arm runs
beside `slo`, one core each, with the same requests at the same moment; the two
exchange cores after every rate. Rates are shares of what stock vLLM gets through
with a backlog, measured first, so that they mean the same on any machine.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from headway.bench.engines.arms import SLO, TUNED
from headway.bench.engines.engine import BenchEngine, EngineError, swap
from headway.bench.engines.lab import TUNED_THRESHOLD, Lab
from headway.bench.engines.options import BenchOptions, end_cleanly_on_sigterm, parser, read
from headway.bench.judge import outcomes
from headway.bench.judge.cells import Cell, goodput_ratio, long_ratio, points, rate_ratio
from headway.bench.judge.outcomes import Alone
from headway.bench.judge.spread import Spread, lowest
from headway.bench.load import workload
from headway.bench.load.loadgen import Patience
from headway.bench.load.workload import LONG, MIXED, SHORT, Arrival
from headway.bench.report import document as report
from headway.bench.report import plot
from headway.bench.report.document import Goal, ProgressLines
from headway.core.batching.settings import STOCK
from headway.core.highest_rate import TARGET_ATTAINMENT, highest_rate

FLAGS: Final = (
    *("--max-num-batched-tokens", "512", "--max-model-len", "8192"),
    *("--max-num-seqs", "64", "--enforce-eager", "--disable-uvicorn-access-log"),
)
ARMS: Final = (STOCK, TUNED, "sequential", "parallel", "priority", SLO)
QUICK_ARMS: Final = (STOCK, SLO)

LOADS: Final = {"light": 0.3, "moderate": 0.6, "1.5x overload": 1.5}
"""The loads at which goodput is compared, as shares of the saturation rate."""
SHARES: Final = (0.15, 0.3, 0.6, 1.0, 1.5)
QUICK_SHARES: Final = (0.15, 0.3, 0.6, 1.5)

ALONE_TOKENS: Final = (40, 80, 1_200, 2_000, 2_800)
BACKLOG: Final = ((MIXED[0], 35), (MIXED[1], 3))


def duration_s(share: float, *, quick: bool) -> float:
    """How long requests arrive at a rate: longer where they are few."""
    if quick:
        return 35.0
    return 90.0 if share < min(LOADS.values()) else 55.0


class Bench:
    """One run: the anchor (`slo`, or the last arm) stays up, each other arm runs beside it."""

    def __init__(self, options: BenchOptions, shares: Sequence[float], lab: Lab) -> None:
        self.options = options
        self.shares = shares
        self.lab = lab
        self.anchor = options.arms[-1]
        self.cells: list[Cell] = []

    def run(self, saturation_per_s: float | None) -> tuple[Alone, float]:
        """Measure everything; the cells are in `cells`.

        saturation_per_s: None to measure it.
        Returns latency alone and the saturation rate.
        """
        with ExitStack() as stack:
            with self.lab.engine(STOCK) as stock:
                repeats = 1 if self.options.quick else 2
                alone = self.lab.measure_alone(stock, ALONE_TOKENS, repeats)
                rate_per_s = saturation_per_s or self._saturation(stock, alone)
                self.lab.progress.line(f"saturation: {rate_per_s:.2f} requests/s")
                sitting = Sitting(self.lab, alone, rate_per_s)
                self.lab.tune(
                    stock,
                    lambda tuned: sitting.cell(0, LOADS["moderate"], tuned, stock)[0].share_met,
                )
                anchor = stack.enter_context(self.lab.engine(self.anchor, beside=stock))
                self.lab.stage.warm_up(anchor)
                self.cells += sitting.cells(self.shares, stock, anchor)
            for arm in self.lab.others(self.anchor):
                with self.lab.attempt(arm), self.lab.engine(arm, beside=anchor) as engine:
                    self.lab.stage.warm_up(engine)
                    self.cells += sitting.cells(self.shares, engine, anchor)
        return alone, rate_per_s

    def _saturation(self, stock: BenchEngine, alone: Alone) -> float:
        """Requests a second with a backlog; never less than one after the other would give."""
        made = workload.burst(BACKLOG, self.options.seed)
        samples = self.lab.stage.play([stock], made)[stock.name]
        ends_s = [s.token_times_s[-1] for s in samples if s.error is None]
        if len(ends_s) < len(samples):
            raise EngineError(f"{stock.name} failed requests: {dict(outcomes.errors(samples))}")
        in_turn_s = sum(
            alone.ttft_s(s.prompt_tokens) + alone.tpot_s * s.output_tokens for s in samples
        )
        return len(samples) / min(max(ends_s), in_turn_s)


@dataclass(frozen=True, slots=True)
class Sitting:
    """Two engines side by side, at every rate."""

    lab: Lab
    alone: Alone
    saturation_per_s: float

    def cells(
        self, shares: Sequence[float], engine: BenchEngine, anchor: BenchEngine
    ) -> list[Cell]:
        """All rates, as often as asked."""
        return [
            cell
            for repeat in range(self.lab.options.repeats or 1)
            for share in shares
            for cell in self.cell(repeat, share, engine, anchor)
        ]

    def cell(
        self, repeat: int, share: float, engine: BenchEngine, anchor: BenchEngine
    ) -> list[Cell]:
        """One rate: what both engines made of the same requests. Exchanges their cores."""
        options = self.lab.options
        made = workload.poisson(
            share * self.saturation_per_s,
            duration_s(share, quick=options.quick),
            MIXED,
            # Of rate and repeat only: every arm gets the same requests.
            seed=options.seed * 1_000_000 + repeat * 10_000 + round(share * 1_000),
        )
        patience = Patience(hopeless_s=self._hopeless_s)
        samples = self.lab.stage.play([engine, anchor], made, patience)
        found = [
            Cell.of(
                outcomes.judge(samples[mine.name], self.lab.slo, self.alone),
                arm=mine.name,
                beside=other.name,
                rate_per_s=share * self.saturation_per_s,
                share=share,
                duration_s=made.duration_s,
                core=mine.core,
                generator_lag_s=outcomes.generator_lag_s(samples[mine.name]),
                raw=outcomes.raw(samples[mine.name]),
            )
            for mine, other in ((engine, anchor), (anchor, engine))
        ]
        self.lab.progress.line(
            f"{found[0].rate_per_s:.2f} requests/s ({share:g} of saturation), "
            f"{len(made.arrivals)} sent: "
            + ", ".join(f"{cell.arm} {cell.share_met:.2f}" for cell in found)
        )
        swap(engine, anchor)
        return found

    def _hopeless_s(self, arrival: Arrival) -> float:
        limits = self.lab.slo.limits(self.alone.ttft_s(arrival.prompt_tokens))
        return limits.ttft_s + limits.tpot_s * (arrival.output_tokens - 1)


def goals(cells: Sequence[Cell], arms: Sequence[str], seed: int) -> list[Goal]:
    """Every target of this benchmark."""
    others = [arm for arm in arms if arm != SLO] if SLO in arms else []
    stocks = [arm for arm in others if arm in {STOCK, TUNED}]

    def at_least(bound: float, name: str, measured: Spread | None) -> Goal:
        return Goal(name, bound, at_most=False, measured=measured)

    return [
        at_least(
            4.0,
            "highest rate with 90% attainment, slo / best stock arm",
            lowest([rate_ratio(cells, SLO, arm, seed) for arm in stocks]),
        ),
        at_least(
            1.0,
            "attainment of long prompts at that rate, slo / stock",
            lowest([long_ratio(cells, SLO, arm, seed) for arm in stocks[:1]]),
        ),
        *(
            at_least(
                1.0,
                f"goodput at {load} load, slo / best other arm",
                lowest([goodput_ratio(cells, SLO, arm, share, seed) for arm in others]),
            )
            for load, share in LOADS.items()
        ),
    ]


def tables(cells: Sequence[Cell], arms: Sequence[str]) -> str:
    """Attainment by class, goodput and the highest rate, by arm."""
    rates = [point.rate_per_s for point in points(cells)]
    texts = []
    for title, name in (("attainment", None), ("short", SHORT), ("long", LONG)):
        rows = []
        for arm in arms:
            found = points([c for c in cells if c.arm == arm], name)
            known = {point.rate_per_s: point.attainment for point in found}
            rows.append([arm, *(known.get(rate) for rate in rates)])
        texts.append(report.table([title, *(f"{rate:.2f}/s" for rate in rates)], rows))
    rows = []
    for arm in arms:
        mine = [c for c in cells if c.arm == arm]
        best = highest_rate(points(mine))
        at = [[c for c in mine if c.share == share] for share in LOADS.values()]
        goodputs = [
            sum(sum(c.hits) for c in some) / sum(c.duration_s for c in some) if some else None
            for some in at
        ]
        rows.append([arm, best.rate_per_s, best.bracket, *goodputs])
    headers = ["arm", "highest rate/s", "lies", *(f"goodput/s, {load}" for load in LOADS)]
    return "\n\n".join([*texts, report.table(headers, rows)])


def raw_figures(cells: Sequence[Cell], arms: Sequence[str], alone: Alone) -> dict[str, Any]:
    """What the targets came from: every request, and the curve of each arm."""
    curves = {}
    for arm in arms:
        mine = [c for c in cells if c.arm == arm]
        curves[arm] = {
            "highest_rate": asdict(highest_rate(points(mine))),
            "all": [asdict(point) for point in points(mine)],
            SHORT: [asdict(point) for point in points(mine, SHORT)],
            LONG: [asdict(point) for point in points(mine, LONG)],
        }
    return {"alone": asdict(alone), "curves": curves, "cells": [asdict(c) for c in cells]}


def main() -> int:
    """Run, print the tables, write the report and its plot; 1 if an arm wasn't measured."""
    made = parser(__doc__ or "", TUNED_THRESHOLD)
    made.add_argument("--rates", help="comma-separated, as shares of the saturation rate")
    made.add_argument("--saturation", type=float, help="requests/s, instead of measuring it")
    options, values = read(made, ARMS, QUICK_ARMS)
    end_cleanly_on_sigterm()
    shares = set(QUICK_SHARES if options.quick else SHARES)
    if values.rates:
        shares = {float(share) for share in values.rates.split(",")} | set(LOADS.values())
    lab = Lab(options, FLAGS, ProgressLines(sys.stderr))
    bench = Bench(options, sorted(shares), lab)
    alone, saturation_per_s = bench.run(values.saturation)
    ran = [arm for arm in options.arms if any(cell.arm == arm for cell in bench.cells)]
    targets = goals(bench.cells, ran, options.seed)
    print(tables(bench.cells, ran), report.goals_table(targets), sep="\n\n")
    if options.json is None:
        return int(bool(lab.failures))
    configuration = {
        "options": options.plain(),
        "flags": FLAGS,
        "slo": asdict(lab.slo),
        "mix": [asdict(item) for item in MIXED],
        "saturation_per_s": saturation_per_s,
        "shares": bench.shares,
        "loads": LOADS,
        "tuned_threshold_tokens": lab.threshold,
        "tuning": lab.tuning,
        "failures": lab.failures,
    }
    raw = raw_figures(bench.cells, ran, alone)
    whole = report.document(
        seed=options.seed, configuration=configuration, raw=raw, targets=targets
    )
    report.write(options.json, whole)
    curves = {
        arm: [
            (p.rate_per_s, p.attainment) for p in points([c for c in bench.cells if c.arm == arm])
        ]
        for arm in ran
    }
    plot.write_lines(
        options.json.with_suffix(".svg"), curves, "requests/s", "attainment", TARGET_ATTAINMENT
    )
    return int(bool(lab.failures))


if __name__ == "__main__":
    sys.exit(main())
