"""What a long prompt does to everyone else, arm by arm, beside stock vLLM.

Stock vLLM and one arm at a time run side by side, one core each, and get the same
requests at the same moment; the two exchange cores after every round. Three kinds
of round: *contention* (running decodes, short arrivals throughout, one long prompt),
*lone* (a long prompt and nothing else) and *saturated* (a backlog of mixed requests).
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from headway.bench.engines.arms import SLO, TUNED
from headway.bench.engines.engine import BenchEngine, swap
from headway.bench.engines.lab import TUNED_THRESHOLD, Lab
from headway.bench.engines.options import BenchOptions, end_cleanly_on_sigterm, parser, read
from headway.bench.judge import outcomes
from headway.bench.judge.figures import Figures, Judge
from headway.bench.judge.outcomes import Alone
from headway.bench.judge.spread import Spread, ratio, ratios, spread
from headway.bench.load import workload
from headway.bench.load.exchange import Sample
from headway.bench.load.workload import LONG, RUNNING, SHORT, ClosedLoop, LengthClass
from headway.bench.report import document as report
from headway.bench.report.document import Goal, ProgressLines
from headway.core.batching.settings import STOCK

STEP_TOKENS: Final = 512
FLAGS: Final = (
    *("--max-num-batched-tokens", str(STEP_TOKENS), "--max-model-len", "8192"),
    *("--max-num-seqs", "64", "--enforce-eager", "--disable-uvicorn-access-log"),
)
ARMS: Final = (STOCK, TUNED, "sequential", "parallel", "priority", SLO)
QUICK_ARMS: Final = (STOCK, "parallel", SLO)

LONG_TOKENS: Final = (12 * STEP_TOKENS, 24)
LONG_AT_S: Final = 4.0
SHORTS: Final = LengthClass(SHORT, 1.0, (30, 60), (20, 28))
SHORT_RATE_PER_S: Final = 1.0
DECODES: Final = ClosedLoop(4, RUNNING, prompt_tokens=32, output_tokens=192)
BACKLOG: Final = ((SHORTS, 40), (LengthClass(LONG, 0.0, (1_200, 2_800), (20, 28)), 3))


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: rounds of each kind, and the length of a contention round."""

    contention: int
    lone: int
    saturated: int
    contention_s: float


PLAN: Final = Plan(contention=3, lone=5, saturated=2, contention_s=36.0)
QUICK_PLAN: Final = Plan(contention=1, lone=1, saturated=1, contention_s=24.0)


@dataclass(frozen=True, slots=True)
class Round:
    """One workload as an arm and stock, side by side, served it."""

    kind: str
    repeat: int
    arm: str
    core: int
    of_arm: Figures
    of_stock: Figures
    raw: dict[str, list[dict[str, Any]]]


def workload_of(kind: str, plan: Plan, seed: int) -> workload.Workload:
    """The requests of one round."""
    if kind == "lone":
        return workload.lone(*LONG_TOKENS, LONG)
    if kind == "saturated":
        return workload.burst(BACKLOG, seed)
    return workload.contention(
        short=SHORTS,
        short_rate_per_s=SHORT_RATE_PER_S,
        long_prompts_at_s=[LONG_AT_S],
        long_tokens=LONG_TOKENS,
        running=DECODES,
        duration_s=plan.contention_s,
        seed=seed,
    )


def figures_of(kind: str, judge: Judge, samples: Sequence[Sample], duration_s: float) -> Figures:
    """The figures of one engine in one round."""
    if kind == "saturated":
        return judge.saturated(samples)
    if kind == "lone":
        return judge.lone(samples)
    return judge.contention(samples, duration_s)


class Bench:
    """One run: stock stays up throughout, the other arms come and go."""

    def __init__(self, options: BenchOptions, lab: Lab) -> None:
        self.options = options
        self.lab = lab
        self.plan = QUICK_PLAN if options.quick else PLAN
        self.rounds: list[Round] = []

    def run(self) -> Judge:
        """Measure everything; the rounds are in `rounds`."""
        short_tokens = sum(SHORTS.prompt_tokens) // 2
        lengths = [*SHORTS.prompt_tokens, short_tokens, LONG_TOKENS[0]]
        with self.lab.engine(STOCK) as stock:
            alone = self.lab.measure_alone(stock, lengths, 1 if self.options.quick else 3)
            judge = Judge(self.lab.slo, alone, short_tokens)
            self.lab.tune(
                stock,
                lambda engine: (
                    self._round("contention", 0, stock, engine, judge).of_arm["attainment"] or 0.0
                ),
            )
            for arm in self.lab.others():
                with self.lab.attempt(arm), self.lab.engine(arm, beside=stock) as engine:
                    self.lab.stage.warm_up(engine)
                    self._pair(stock, engine, judge)
        return judge

    def _pair(self, stock: BenchEngine, engine: BenchEngine, judge: Judge) -> None:
        plan, repeats = self.plan, self.options.repeats
        counts = {"contention": repeats or plan.contention, "saturated": repeats or plan.saturated}
        if engine.name != TUNED:  # its cap is lifted for a lone request: that is stock
            counts["lone"] = repeats or plan.lone
        kinds = [
            (kind, repeat)
            for repeat in range(max(counts.values()))
            for kind, count in counts.items()
            if repeat < count
        ]
        for kind, repeat in kinds:
            self.rounds.append(self._round(kind, repeat, stock, engine, judge))

    def _round(
        self, kind: str, repeat: int, stock: BenchEngine, engine: BenchEngine, judge: Judge
    ) -> Round:
        self.lab.progress.line(f"{engine.name} beside {stock.name}: {kind} {repeat + 1}")
        made = workload_of(kind, self.plan, self.options.seed + repeat)
        samples = self.lab.stage.play([stock, engine], made)
        core = engine.core
        swap(stock, engine)
        figures = {
            name: figures_of(kind, judge, part, made.duration_s) for name, part in samples.items()
        }
        if failed := outcomes.errors(samples[engine.name]):
            self.lab.progress.line(f"  {engine.name}: {dict(failed)}")
        raw = {name: outcomes.raw(part) for name, part in samples.items()}
        return Round(
            kind, repeat, engine.name, core, figures[engine.name], figures[stock.name], raw
        )


def over_stock(rounds: Sequence[Round], arm: str, figure: str) -> Spread | None:
    """The arm's figure over stock's, round by round."""
    mine = [r for r in rounds if r.arm == arm and figure in r.of_arm]
    return ratios([r.of_arm[figure] for r in mine], [r.of_stock[figure] for r in mine])


def of_arm(rounds: Sequence[Round], arm: str, figure: str) -> Spread | None:
    """The arm's figure; stock's is taken from its rounds beside all arms."""
    if arm == STOCK:
        return spread([r.of_stock.get(figure) for r in rounds])
    return spread([r.of_arm.get(figure) for r in rounds if r.arm == arm])


def goals(rounds: Sequence[Round]) -> list[Goal]:
    """Every target of this benchmark."""

    def against(arm: str, figure: str, what: str, bound: float, *, at_most: bool = True) -> Goal:
        measured = over_stock(rounds, arm, figure)
        return Goal(f"{what}, {arm} / stock", bound, at_most=at_most, measured=measured)

    def own(figure: str, what: str, bound: float) -> Goal:
        return Goal(f"{what}, slo", bound, at_most=True, measured=of_arm(rounds, SLO, figure))

    return [
        against("parallel", "short_ttft_p99_s", "short TTFT p99", 0.2),
        against(SLO, "short_ttft_p99_s", "short TTFT p99", 0.15),
        own("short_ttft_p50_x_alone", "short TTFT p50 / alone", 3.0),
        own("short_ttft_p99_x_limit", "short TTFT p99 / TTFT limit", 1.1),
        against(SLO, "stall_s", "longest stall of running decodes", 0.3),
        own("tpot_p99_x_limit", "TPOT p99 of running decodes / TPOT limit", 1.05),
        own("stall_x_limit", "longest stall of running decodes / TPOT limit", 3.3),
        against("parallel", "long_ttft_s", "long TTFT under contention", 1.3),
        against(SLO, "long_ttft_s", "long TTFT under contention", 1.5),
        *(
            against(arm, "lone_ttft_s", "lone long TTFT", 1.03)
            for arm in ("sequential", "parallel", "priority")
        ),
        against(SLO, "lone_ttft_s", "lone long TTFT", 1.1),
        *(
            against(arm, "tokens_per_s", "tokens/s, saturated", 0.97, at_most=False)
            for arm in ("sequential", "parallel", "priority", SLO)
        ),
    ]


COLUMNS: Final = {
    "short_ttft_p50_s": "short TTFT p50",
    "short_ttft_p99_s": "short TTFT p99",
    "itl_p99_s": "ITL p99",
    "stall_s": "longest stall",
    "long_ttft_s": "long TTFT",
    "lone_ttft_s": "lone TTFT",
    "tokens_per_s": "tokens/s",
    "goodput_per_s": "goodput/s",
}


def tables(rounds: Sequence[Round], arms: Sequence[str], alone: Alone) -> str:
    """Figures by arm: as measured, over stock, and over the request alone."""
    short_s = alone.ttft_s(sum(SHORTS.prompt_tokens) // 2)
    long_s = alone.ttft_s(LONG_TOKENS[0])
    limit: Figures = {
        **dict.fromkeys(COLUMNS),
        "short_ttft_p50_s": short_s,
        "short_ttft_p99_s": short_s,
        "itl_p99_s": alone.itl_p99_s,
        "stall_s": alone.longest_stall_s,
        "long_ttft_s": long_s,
        "lone_ttft_s": long_s,
    }

    def median(arm: str, figure: str) -> float | None:
        found = of_arm(rounds, arm, figure)
        return found.value if found else None

    measured = [[arm, *(median(arm, name) for name in COLUMNS)] for arm in arms]
    beside = [[arm, *(over_stock(rounds, arm, name) for name in COLUMNS)] for arm in arms]
    to_alone = [[arm, *(ratio(median(arm, name), limit[name]) for name in COLUMNS)] for arm in arms]
    return "\n\n".join(
        report.table([title, *COLUMNS.values()], rows)
        for title, rows in (
            ("seconds, medians", [*measured, ["alone", *limit.values()]]),
            ("over stock (spread)", [row for row in beside if row[0] != STOCK]),
            ("over alone", to_alone),
        )
    )


def main() -> int:
    """Run, print the tables, write the report; 1 if an arm could not be measured."""
    options, _ = read(parser(__doc__ or "", TUNED_THRESHOLD), ARMS, QUICK_ARMS)
    end_cleanly_on_sigterm()
    lab = Lab(options, FLAGS, ProgressLines(sys.stderr))
    bench = Bench(options, lab)
    judge = bench.run()
    targets = goals(bench.rounds)
    print(tables(bench.rounds, options.arms, judge.alone), report.goals_table(targets), sep="\n\n")
    if options.json is None:
        return int(bool(lab.failures))
    configuration = {
        "options": options.plain(),
        "flags": FLAGS,
        "plan": asdict(bench.plan),
        "slo": asdict(judge.slo),
        "long_tokens": LONG_TOKENS,
        "shorts": asdict(SHORTS),
        "short_rate_per_s": SHORT_RATE_PER_S,
        "decodes": asdict(DECODES),
        "backlog": [(asdict(item), count) for item, count in BACKLOG],
        "tuned_threshold_tokens": lab.threshold,
        "tuning": lab.tuning,
        "failures": lab.failures,
    }
    raw = {"alone": asdict(judge.alone), "rounds": [asdict(r) for r in bench.rounds]}
    made = report.document(seed=options.seed, configuration=configuration, raw=raw, targets=targets)
    report.write(options.json, made)
    return int(bool(lab.failures))


if __name__ == "__main__":
    sys.exit(main())
