"""What `slo` makes of ordinary traffic, of mishaps and of hostile clients, in virtual time.

vLLM's real scheduler at the step times of a machine that isn't there (`virtual/machines.py`),
on a clock that jumps from step to step: an hour passes in seconds, and two runs are identical.
Real engines say what this is worth; this says what changed, and at a scale they can't reach.
"""

import argparse
import logging
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine"))

from harness import model_dir
from virtual.engine import STOCK, Demand, Mishap, Run, VirtualEngine, virtual_time
from virtual.scenarios import (
    ANSWER,
    CORE_TRAFFIC,
    FILL,
    GPU_TRAFFIC,
    LONG,
    ODD,
    SHORT,
    TINY,
    Hiccup,
    Traffic,
    answers,
    flood,
    impossible,
    with_odd_one,
)

from headway.bench.judge.spread import Spread, spread
from headway.bench.report import document as report
from headway.bench.report.document import Goal, ProgressLines
from headway.core.slo import attainment, itls_s, percentile, tpot_s, ttft_s

CAPACITY_PER_S: Final = 52.0
"""Prompts of 256 tokens that the machine prefills, with `slo`."""
CORE_RATES: Final = (0.6, 1.0)
MISHAPS: Final[dict[str, tuple[int, Callable[[], Mishap | None]]]] = {
    "nothing": (8_000, lambda: None),
    "a step 0.2 s longer": (8_000, lambda: Hiccup(pause_s=0.2)),
    "a pause of 1 s": (8_000, lambda: Hiccup(pause_s=1.0)),
    "all were preempted": (500, lambda: Hiccup(preempt_all=True)),
}
"""Prompt tokens of the running answers, and what holds them up."""
HOSTILE: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "ttft 0.001": (20, {"asked": {"headway_ttft_slo_s": 0.001}}),
    "tpot 1e308": (1_000, {"asked": {"headway_tpot_slo_s": 1e308}}),
    "tpot 0.026": (1_000, {"asked": {"headway_tpot_slo_s": 0.026}}),
    "ttft 1e9": (20, {"asked": {"headway_ttft_slo_s": 1e9}}),
    "priority -100": (20, {"priority": -100}),
}
"""Tokens of the odd client's answers, and what it asks for."""
WIDE: Final = {
    "min_client_slo_factor": 1e-4,
    "max_client_slo_factor": 1e9,
    "min_client_priority": -8,
}
"""An operator who lets clients ask for anything."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: what was measured, by class of requests."""

    scenario: str
    arm: str
    seed: int
    met: dict[str, float | None]
    ttft_p50_s: dict[str, float | None]
    ttft_max_s: dict[str, float | None]
    tpot_p50_s: dict[str, float | None]
    stall_s: dict[str, float | None]
    tokens_per_s: float


class Lab:
    """Runs scenarios and keeps what came of them."""

    def __init__(self, folder: Path, progress: ProgressLines) -> None:
        self._folder = folder
        self._progress = progress
        self.cells: list[Cell] = []

    def run(
        self,
        scenario: str,
        arm: str,
        demands: Sequence[Demand],
        *,
        traffic: Traffic = GPU_TRAFFIC,
        seed: int = 1,
        mishap: Mishap | None = None,
        **settings: Any,
    ) -> Cell:
        """Serve the demands with a policy (`vllm`: stock) and its settings.

        traffic: has the machine, and the limits that `slo` is told.
        """
        name = STOCK if arm == STOCK else "slo"
        limits = {"ttft_slo_s": traffic.ttft_s, "tpot_slo_s": traffic.tpot_s}
        values = {} if arm == STOCK else {**limits, **settings}
        machine = traffic.machine
        with virtual_time() as clock:
            engine = VirtualEngine(self._folder, machine, name, seed=seed, clock=clock, **values)
            cell = cell_of(scenario, arm, seed, engine.serve(demands, mishap))
        self.cells.append(cell)
        met = ", ".join(f"{kind} {report.cell(share)}" for kind, share in cell.met.items())
        self._progress.line(f"{scenario}, {arm}, seed {seed}: met {met}")
        return cell


def cell_of(scenario: str, arm: str, seed: int, run: Run) -> Cell:
    """The figures of a run."""
    kinds = sorted({each.demand.kind for each in run.served})
    outcomes = {kind: [each.outcome for each in run.of(kind)] for kind in kinds}

    def by_kind(figure: Callable[[list[Any]], float | None]) -> dict[str, float | None]:
        return {kind: figure(found) for kind, found in outcomes.items()}

    def stall_s(found: list[Any]) -> float | None:
        return max((gap for each in found for gap in itls_s(each)), default=None)

    def first_s(percent: float) -> Callable[[list[Any]], float | None]:
        return lambda found: percentile(filter(None, map(ttft_s, found)), percent)

    tokens = sum(each.demand.prompt_tokens + len(each.token_times_s) for each in run.served)
    return Cell(
        scenario,
        arm,
        seed,
        met=by_kind(attainment),
        ttft_p50_s=by_kind(first_s(50)),
        ttft_max_s=by_kind(first_s(100)),
        tpot_p50_s=by_kind(lambda found: percentile(filter(None, map(tpot_s, found)), 50)),
        stall_s=by_kind(stall_s),
        tokens_per_s=tokens / run.end_s,
    )


def everyone(cell: Cell, demands: Sequence[Demand], *, but: str = "") -> float:
    """Share of all requests met, without those of one class."""
    counts = {kind: sum(d.kind == kind for d in demands) for kind in cell.met if kind != but}
    return sum((cell.met[kind] or 0.0) * n for kind, n in counts.items()) / sum(counts.values())


def one(value: float | None) -> Spread | None:
    """A value of a run that is the same each time."""
    return None if value is None else Spread(value, value, value)


def hiccups(lab: Lab) -> list[Goal]:
    """Running answers keep their limit after something has held the engine up."""
    goals = []
    for name, (prompt_tokens, mishap) in MISHAPS.items():
        cell = lab.run(f"hiccup: {name}", "slo", answers(prompt_tokens), mishap=mishap())
        goals.append(Goal(f"TPOT met after {name}", 1.0, False, one(cell.met[ANSWER])))
    return goals


def hostile(lab: Lab, until_s: float) -> list[Goal]:
    """What the others get with an odd client, relative to what they get without it."""
    usual = GPU_TRAFFIC.demands(1, 1.2, until_s)
    alone = everyone(lab.run("hostile: nobody", "slo", usual), usual)
    goals = []
    for name, (tokens, asked) in HOSTILE.items():
        demands = with_odd_one(usual, until_s, tokens, **asked)
        for arm, settings in (("slo", {}), ("slo, any limit allowed", WIDE)):
            if settings and "tpot 1e308" in name:
                continue  # what it allows there is a request without a limit
            cell = lab.run(f"hostile: {name}", arm, demands, **settings)
            share = everyone(cell, demands, but=ODD) / alone
            goals.append(Goal(f"others' attainment beside {name} ({arm})", 0.98, False, one(share)))
    return goals


def impossible_limit(lab: Lab) -> list[Goal]:
    """A limit that no step can meet starves nobody."""
    good = lab.run("tpot_slo_s 0.05", "slo", impossible(0.05))
    bad = lab.run("tpot_slo_s 0.004", "slo", impossible(0.004), tpot_slo_s=0.004)
    return [
        Goal(
            f"TTFT of the {kind} prompt with an impossible TPOT limit / with a good one",
            1.5,
            True,
            one((bad.ttft_max_s[kind] or math.inf) / (good.ttft_max_s[kind] or math.inf)),
        )
        for kind in (LONG, SHORT)
    ]


def floods(lab: Lab, until_s: float) -> list[Goal]:
    """Twice what the engine can do for a minute."""
    demands = flood(1, 2 * CAPACITY_PER_S, until_s)
    cell = lab.run("flood at twice capacity", "slo", demands, max_wait_s=20.0)
    lab.run("flood at twice capacity", "vllm", demands)
    return [Goal("tiny prompts met in a flood", 0.3, False, one(cell.met[TINY]))]


def ordinary(
    lab: Lab, traffic: Traffic, rates: Sequence[float], seeds: Sequence[int], until_s: float
) -> list[Goal]:
    """Traffic without mishaps, also in overload, where `max_wait_s` mustn't make everyone late."""
    goals = []
    for rate in rates:
        name = f"{rate:g}/s on {traffic.machine.name}"
        shares, away = list[float](), list[float]()
        by_kind: dict[str, list[float | None]] = {SHORT: [], LONG: []}
        for seed in seeds:
            demands = traffic.demands(seed, rate, until_s)
            cell = lab.run(name, "slo", demands, traffic=traffic, seed=seed)
            free = lab.run(
                name, "slo, no max_wait_s", demands, traffic=traffic, seed=seed, max_wait_s=1e6
            )
            lab.run(name, STOCK, demands, traffic=traffic, seed=seed)
            shares.append(everyone(cell, demands))
            away.append(everyone(cell, demands) / everyone(free, demands))
            for kind, met in by_kind.items():
                met.append(cell.met.get(kind))
        goals += [
            Goal(f"met at {name}", 0.9, False, spread(shares)),
            *(Goal(f"{k} met at {name}", 0.3, False, spread(met)) for k, met in by_kind.items()),
            Goal(f"met at {name} / without max_wait_s", 0.98, False, spread(away)),
        ]
    return goals


def rows(cells: Sequence[Cell]) -> list[tuple[object, ...]]:
    """A line a run and class."""
    return [
        (
            f"{cell.scenario}, {cell.arm}, seed {cell.seed}: {kind}",
            cell.met[kind],
            cell.ttft_p50_s[kind],
            cell.ttft_max_s[kind],
            cell.tpot_p50_s[kind],
            cell.stall_s[kind],
            cell.tokens_per_s,
        )
        for cell in cells
        for kind in cell.met
        if kind != FILL
    ]


def main() -> int:
    """Measure, print tables and, if asked, write the report."""
    options = _options()
    logging.disable(logging.WARNING)
    progress = ProgressLines()
    seeds = (1, 2, 3) if options.quick else (1, 2, 3, 4, 5)
    rates = (1.5,) if options.quick else (0.9, 1.2, 1.5, 2.0)
    until_s = 120.0 if options.quick else 300.0
    with tempfile.TemporaryDirectory() as name:
        lab = Lab(model_dir(Path(name)), progress)
        goals = [*hiccups(lab), *impossible_limit(lab), *hostile(lab, until_s)]
        goals += floods(lab, 60.0)
        goals += ordinary(lab, GPU_TRAFFIC, rates, seeds, until_s)
        goals += ordinary(lab, CORE_TRAFFIC, CORE_RATES, seeds, until_s)
    headers = ("run: class", "met", "TTFT p50 s", "max s", "TPOT p50 s", "stall s", "tokens/s")
    print(report.table(headers, rows(lab.cells)))
    print()
    print(report.goals_table(goals))
    if options.json is not None:
        configuration: dict[str, Any] = {
            "seeds": seeds,
            "rates": rates,
            "until_s": until_s,
            "quick": options.quick,
        }
        configuration["traffic"] = [asdict(GPU_TRAFFIC), asdict(CORE_TRAFFIC)]
        raw = [asdict(cell) for cell in lab.cells]
        report.write(
            options.json,
            report.document(seed=seeds[0], configuration=configuration, raw=raw, targets=goals),
        )
    return 0


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--quick", action="store_true", help="a shorter run of the same shape")
    made.add_argument("--json", type=Path, metavar="PATH", help="write the report here")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
