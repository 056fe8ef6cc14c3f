"""What a router costs: headway and vllm-router (Rust) before stub engines, and no router.

The stub engines and the load generator share one core, the router under test has the
other. In every repeat all routers are started afresh, stay up side by side, and take
the same cells in turn: 64, 512 and 4,096 concurrent streams, and short requests that
aren't streamed, in a closed loop. Unified and disaggregated.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from headway.bench.engines.options import end_cleanly_on_sigterm
from headway.bench.engines.processes import (
    free_ports,
    raise_file_limit,
    rss_bytes,
    running,
    stolen_s,
)
from headway.bench.judge.histogram import bucket_percentile, buckets
from headway.bench.judge.spread import spread
from headway.bench.report import document as report
from headway.bench.report.document import ProgressLines
from headway.bench.router import arms, figures
from headway.bench.router.arms import ArmError, Engines, RouterArm
from headway.bench.router.figures import MANY_STREAMS, SHORT, STREAMS, RouterCell
from headway.bench.router.load import Spec

ADDED: Final = "headway:router_added_seconds"
WHERE: Final = ("before first leg", "between legs")
CONNECTIONS: Final = 64
"""Of the closed loop."""
SEED: Final = 1
STOLEN_SHARE: Final = 0.01
"""Of the time a cell takes: if the machine under this one kept more from it, it runs again."""
RUNS: Final = 3
"""Of a cell, at most; the one from which least was kept counts."""
FILES_PER_STREAM: Final = 2
SPARE_FILES: Final = 256
PACKAGES: Final = ("httptools", "uvloop", "prometheus_client")


@dataclass(frozen=True, slots=True)
class Load:
    """One cell: what the load generator is told, but for the router and the seed."""

    kind: str
    streams: int
    window_s: float
    gap_s: float = 0.05
    ramp_s: float = 1.0
    settle_s: float = 1.0
    probe_s: float = 0.0
    probes_per_s: float = 0.0
    prompt_bytes: int = 1_000


# Of 4,096 streams each is slow: the load generator must keep up, and so many at 20 tokens/s
# would be more than a core. Nothing arrives beside them, as they are headway's default ceiling.
LOADS: Final = (
    Load(STREAMS, 64, 8.0, probe_s=10.0, probes_per_s=100.0),
    Load(STREAMS, 512, 8.0, ramp_s=2.0, probe_s=10.0, probes_per_s=100.0),
    Load(SHORT, CONNECTIONS, 6.0, prompt_bytes=200),
    Load(STREAMS, MANY_STREAMS, 8.0, gap_s=0.5, ramp_s=8.0, settle_s=2.0),
)
WARM_UP: Final = Load(SHORT, 8, 0.5, settle_s=0.5, prompt_bytes=200)
REPEATS: Final = 5
QUICK_SHARE: Final = 0.25
"""Of the windows and probes."""


def quick(load: Load) -> Load:
    """The same cell in less time."""
    return replace(load, window_s=load.window_s * QUICK_SHARE, probe_s=load.probe_s * QUICK_SHARE)


class Bench:
    """One run."""

    def __init__(self, options: argparse.Namespace, progress: ProgressLines) -> None:
        self.options = options
        self.progress = progress
        self.loads = [quick(load) if options.quick else load for load in LOADS]
        self.cells: list[RouterCell] = []
        self.raw: list[dict[str, Any]] = []
        self.failures: dict[str, str] = {}
        self.cores = _cores(shared=options.shared_cores)
        self._env = {"PYTHONPATH": str(Path(__file__).parent)}

    def run(self, repeats: int) -> None:
        """Measure everything. A router that doesn't start is left out and noted."""
        files = raise_file_limit()
        for load in [each for each in self.loads if each.kind == STREAMS]:
            if load.streams * FILES_PER_STREAM + SPARE_FILES > files:
                self.loads.remove(load)
                self.failures[f"{load.streams} streams"] = f"only {files} files may be open"
        wanted = [(arm, mode) for arm in self.options.arms for mode in arms.MODES_BY_ARM[arm]]
        program = None
        if {arms.RUST, arms.RUST_PLAIN} & set(self.options.arms):
            self.progress.line(f"{arms.RUST} {arms.VERSION}: installing unless it is there")
            with self._attempt(arms.RUST):
                program = arms.install_rust()
        for repeat in range(repeats):
            with contextlib.ExitStack() as stack:
                engines, stub = stack.enter_context(arms.stub_engines(self.cores[0], self._env))
                routers = [RouterArm(arms.DIRECT, arms.UNIFIED, engines.whole[0], ())]
                for arm, mode in wanted:
                    with self._attempt(f"{arm} {mode}"):
                        routers += self._start(stack, arm, mode, engines, program)
                self._repeat(repeat, routers, engines, stub)

    @contextlib.contextmanager
    def _attempt(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ArmError, subprocess.SubprocessError) as error:
            self.failures[what] = str(error)
            self.progress.line(f"{what} failed: {error}")

    def _start(
        self,
        stack: contextlib.ExitStack,
        arm: str,
        mode: str,
        engines: Engines,
        program: Path | None,
    ) -> list[RouterArm]:
        port, metrics_port = free_ports(2)
        if arm == arms.HEADWAY:
            command = arms.headway_command(mode, engines, port)
        elif program is not None:
            command = arms.rust_command(program, arm, mode, engines, port, metrics_port)
        else:
            return []
        return [stack.enter_context(arms.serving(arm, mode, command, port, self.cores[1]))]

    def _repeat(self, repeat: int, routers: list[RouterArm], engines: Engines, stub: int) -> None:
        idle: dict[RouterArm, int] = {}
        for router in routers:
            self._load(WARM_UP, router, stub, 0)
            idle[router] = rss_bytes(router.pids)
        for index, load in enumerate(self.loads):
            first = (repeat + index) % len(routers)
            for router in routers[first:] + routers[:first]:
                with self._attempt(f"{router.name}, {load.streams} {load.kind}"):
                    self._cell(repeat, load, router, engines, stub, idle[router])

    def _cell(
        self, repeat: int, load: Load, router: RouterArm, engines: Engines, stub: int, idle: int
    ) -> None:
        runs: list[RouterCell] = []
        while not runs or (len(runs) < RUNS and _stolen(runs[-1]) > STOLEN_SHARE):
            runs.append(self._run_cell(repeat, load, router, engines, stub, idle))
        kept = min(runs, key=_stolen)
        for name in kept.figures.keys() & {"failures", "handoffs_missing"}:
            kept.figures[name] = max(run.figures[name] or 0.0 for run in runs)
        self.cells.append(kept)

    def _run_cell(
        self, repeat: int, load: Load, router: RouterArm, engines: Engines, stub: int, idle: int
    ) -> RouterCell:
        missing, added = _handoffs_missing(engines), _added(router)
        began_s, stolen = time.perf_counter(), stolen_s()
        found = self._load(load, router, stub, repeat + 1)
        share = (stolen_s() - stolen) / (time.perf_counter() - began_s)
        of_cell = {**figures.figures_of(found, idle), "stolen_share": share}
        cell = RouterCell(router.arm, router.mode, load.kind, load.streams, repeat, of_cell)
        if router.mode == arms.DISAGGREGATED:
            cell.figures["handoffs_missing"] = float(_handoffs_missing(engines) - missing)
        for where, before in added.items():
            at_s = bucket_percentile(before, _added(router)[where], 99)
            cell.figures[f"{where} p99_ms"] = None if at_s is None else at_s * 1e3
        self.raw.append({**asdict(cell), "failures": found["failures"], "window": found["window"]})
        self.progress.line(
            f"{repeat + 1}: {router.name}, {load.streams} {load.kind}: "
            + ", ".join(f"{name} {report.cell(value)}" for name, value in cell.figures.items())
            + (f" {found['failures']}" if found["failures"] else "")
        )
        return cell

    def _load(self, load: Load, router: RouterArm, stub: int, seed: int) -> dict[str, Any]:
        """Run the load generator on a router."""
        spec = Spec(port=router.port, pids=router.pids, others=(stub,), seed=seed, **asdict(load))
        command = [sys.executable, "-m", "headway.bench.router.load", json.dumps(asdict(spec))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with running(command, core=self.cores[0], env=self._env, **pipes) as process:
            out, said = process.communicate()
        if process.returncode:
            raise ArmError(f"the load generator failed: {said.strip()[-300:]}")
        found: dict[str, Any] = json.loads(out)
        return found


def _stolen(cell: RouterCell) -> float:
    return cell.figures["stolen_share"] or 0.0


def _cores(*, shared: bool) -> tuple[int | None, int | None]:
    """The core of stub engines and load generator, and the routers'; None for any."""
    allowed = sorted(os.sched_getaffinity(0))
    return (None, None) if shared or len(allowed) < 2 else (allowed[0], allowed[1])


def _handoffs_missing(engines: Engines) -> int:
    """Requests on the decode engine that came without a prefill engine's blocks, so far."""
    counts: dict[str, int] = json.loads(arms.fetch(engines.decode, "/stub/counts"))
    asked, handed = (counts.get(f"{engines.decode} {what}", 0) for what in ("requests", "handoffs"))
    return asked - handed


def _added(router: RouterArm) -> dict[str, dict[float, float]]:
    """Headway's own histograms of what it adds."""
    if router.arm != arms.HEADWAY:
        return {}
    text = arms.fetch(router.port, "/metrics")
    return {where: buckets(text, ADDED, where) for where in WHERE}


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


def tables(bench: Bench) -> str:
    """A table for each cell: medians with smallest and largest of the repeats."""
    made = []
    for load in bench.loads:
        columns = COLUMNS[load.kind]
        rows = []
        for arm in (arms.DIRECT, *bench.options.arms):
            for mode in arms.MODES_BY_ARM[arm]:
                of = _column(bench.cells, arm, mode, load)
                row = [of(name) for name in columns]
                if any(each is not None for each in row):
                    rows.append([f"{arm} {mode}", *row])
        made.append(report.table([f"{load.streams} {load.kind}", *columns.values()], rows))
    return "\n\n".join(made)


def _column(cells: list[RouterCell], arm: str, mode: str, load: Load) -> Callable[[str], object]:
    def of(figure: str) -> object:
        if figure.startswith("added"):
            if arm == arms.DIRECT:
                return None
            return spread(figures.added(cells, arm, mode, load.streams, int(figure[-2:])))
        found = spread(figures.values(cells, arm, mode, load.kind, load.streams, figure))
        return found if found is None or found.low < found.high else found.value

    return of


def main() -> int:
    """Measure, print the tables and, if asked, write the report; 1 if something failed."""
    options = _options()
    end_cleanly_on_sigterm()
    progress = ProgressLines()
    bench = Bench(options, progress)
    repeats = options.repeats or (1 if options.quick else REPEATS)
    bench.run(repeats)
    streams = [load.streams for load in bench.loads if load.kind == STREAMS]
    found = figures.goals(bench.cells, streams, CONNECTIONS)
    print(tables(bench), report.goals_table(found), sep="\n\n")
    if options.json is not None:
        configuration = {
            "arms": options.arms,
            "repeats": repeats,
            "quick": options.quick,
            "loads": [asdict(load) for load in bench.loads],
            "cores": bench.cores,
            "stolen_share": STOLEN_SHARE,
            "runs": RUNS,
            "vllm_router": arms.VERSION,
            "packages": {name: metadata.version(name) for name in PACKAGES},
            "failures": bench.failures,
        }
        made = report.document(seed=SEED, configuration=configuration, raw=bench.raw, targets=found)
        report.write(options.json, made)
    return int(bool(bench.failures))


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--repeats", type=int, help=f"how often everything is measured (default: {REPEATS})")
    add("--quick", action="store_true", help="a shorter run of the same shape, once")
    add("--json", type=Path, metavar="PATH", help="write the report here")
    add(
        "--arms",
        metavar="A,B",
        default=",".join(arms.ARMS[1:]),
        help=f"of {', '.join(arms.ARMS[1:])} (default: all); {arms.DIRECT} always runs",
    )
    add("--shared-cores", action="store_true", help="bind nothing to a core")
    options = made.parse_args()
    options.arms = [name for name in options.arms.split(",") if name != arms.DIRECT]
    if unknown := sorted(set(options.arms) - set(arms.ARMS)):
        made.error(f"--arms: unknown {unknown[0]!r}; known are: {', '.join(arms.ARMS)}")
    if options.repeats is not None and options.repeats < 1:
        made.error(f"--repeats is {options.repeats}; use 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
