"""What the router benchmark shows of its cells: a table for each."""

from collections.abc import Callable, Sequence
from typing import Final

from headway.bench.judge.spread import spread
from headway.bench.report import document as report
from headway.bench.router import arms, figures
from headway.bench.router.bench import CellPlan
from headway.bench.router.figures import SHORT, STREAMS, RouterCell

COLUMNS: Final[dict[str, dict[str, str]]] = {
    STREAMS: {
        "cpu_us": "CPU us/token",
        "added p50": "added TTFT p50 ms",
        "added p99": "added TTFT p99 ms",
        "p50_ms": "TTFT p50 ms",
        "p99_ms": "TTFT p99 ms",
        "per_s": "tokens/s",
        "kib_per_stream": "KiB/stream",
        "failures": "failures",
        "handoffs_missing": "without handoff",
        "before first leg p99_ms": "before leg p99 ms",
        "between legs p99_ms": "between legs p99 ms",
    },
    SHORT: {
        "cpu_us": "CPU us/request",
        "per_s": "requests/s",
        "p50_ms": "latency p50 ms",
        "p99_ms": "latency p99 ms",
        "failures": "failures",
        "handoffs_missing": "without handoff",
        "before first leg p99_ms": "before leg p99 ms",
        "between legs p99_ms": "between legs p99 ms",
        "bench_cpu_share": "stub and load, cores",
    },
}


def tables(cells: Sequence[RouterCell], plans: Sequence[CellPlan], names: Sequence[str]) -> str:
    """Medians with smallest and largest of the repeats. names: of the arms beside `direct`."""
    made = []
    for plan in plans:
        columns = COLUMNS[plan.kind]
        rows = []
        for arm in (arms.DIRECT, *names):
            for mode in arms.MODES_BY_ARM[arm]:
                of = _column(cells, arm, mode, plan)
                row = [of(name) for name in columns]
                if any(each is not None for each in row):
                    rows.append([f"{arm} {mode}", *row])
        made.append(report.table([f"{plan.streams} {plan.kind}", *columns.values()], rows))
    return "\n\n".join(made)


def _column(
    cells: Sequence[RouterCell], arm: str, mode: str, plan: CellPlan
) -> Callable[[str], object]:
    def of(figure: str) -> object:
        if figure.startswith("added"):
            if arm == arms.DIRECT:
                return None
            return spread(figures.added(cells, arm, mode, plan.streams, int(figure[-2:])))
        found = spread(figures.values(cells, arm, mode, plan.kind, plan.streams, figure))
        return found if found is None or found.low < found.high else found.value

    return of
