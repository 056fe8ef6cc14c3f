"""One run of the router benchmark: routers up side by side, cells measured in turn."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from headway.bench.engines.processes import (
    free_ports,
    raise_file_limit,
    rss_bytes,
    running,
    stolen_s,
)
from headway.bench.judge.histogram import bucket_percentile, buckets
from headway.bench.report import document as report
from headway.bench.report.document import ProgressLines
from headway.bench.router import arms, figures
from headway.bench.router.arms import ArmError, Engines, RouterArm
from headway.bench.router.figures import SHORT, STREAMS, RouterCell
from headway.bench.router.load import Spec

ADDED: Final = "headway:router_added_seconds"
WHERE: Final = ("before first leg", "between legs")
STOLEN_SHARE: Final = 0.01
"""Of the time a cell takes: if the machine under this one kept more from it, it runs again."""
RUNS: Final = 3
"""Of a cell, at most; the one from which least was kept counts."""
FILES_PER_STREAM: Final = 2
SPARE_FILES: Final = 256


@dataclass(frozen=True, slots=True)
class CellPlan:
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


WARM_UP: Final = CellPlan(SHORT, 8, 0.5, settle_s=0.5, prompt_bytes=200)


def cores(*, shared: bool) -> tuple[int | None, int | None]:
    """The core of stub engines and load generator, and the routers'; None for any."""
    allowed = sorted(os.sched_getaffinity(0))
    return (None, None) if shared or len(allowed) < 2 else (allowed[0], allowed[1])


class RouterBench:
    """One run.

    names: of the arms, beside `direct`. plans: the cells, in order.
    cores: of stub engines and load generator, and of the routers; None for any.
    failures: what could not be measured, and why.
    """

    def __init__(
        self,
        *,
        names: Sequence[str],
        plans: Sequence[CellPlan],
        cores: tuple[int | None, int | None],
        progress: ProgressLines,
    ) -> None:
        self.names = names
        self.plans = list(plans)
        self.cores = cores
        self.progress = progress
        self.cells: list[RouterCell] = []
        self.raw: list[dict[str, Any]] = []
        self.failures: dict[str, str] = {}

    def run(self, repeats: int) -> None:
        """Measure everything. A router that doesn't start is left out and noted."""
        files = raise_file_limit()
        for plan in [each for each in self.plans if each.kind == STREAMS]:
            if plan.streams * FILES_PER_STREAM + SPARE_FILES > files:
                self.plans.remove(plan)
                self.failures[f"{plan.streams} streams"] = f"only {files} files may be open"
        wanted = [(arm, mode) for arm in self.names for mode in arms.MODES_BY_ARM[arm]]
        program = None
        if {arms.RUST, arms.RUST_PLAIN} & set(self.names):
            self.progress.line(f"{arms.RUST} {arms.VERSION}: installing unless it is there")
            with self._attempt(arms.RUST):
                program = arms.install_rust()
        for repeat in range(repeats):
            with contextlib.ExitStack() as stack:
                engines, stub = stack.enter_context(arms.stub_engines(self.cores[0]))
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
        for index, plan in enumerate(self.plans):
            first = (repeat + index) % len(routers)
            for router in routers[first:] + routers[:first]:
                with self._attempt(f"{router.name}, {plan.streams} {plan.kind}"):
                    self._cell(repeat, plan, router, engines, stub, idle[router])

    def _cell(
        self, repeat: int, plan: CellPlan, router: RouterArm, engines: Engines, stub: int, idle: int
    ) -> None:
        runs: list[RouterCell] = []
        while not runs or (len(runs) < RUNS and _stolen(runs[-1]) > STOLEN_SHARE):
            runs.append(self._run_cell(repeat, plan, router, engines, stub, idle))
        kept = min(runs, key=_stolen)
        for name in kept.figures.keys() & {"failures", "handoffs_missing"}:
            kept.figures[name] = max(run.figures[name] or 0.0 for run in runs)
        self.cells.append(kept)

    def _run_cell(
        self, repeat: int, plan: CellPlan, router: RouterArm, engines: Engines, stub: int, idle: int
    ) -> RouterCell:
        missing, added = _handoffs_missing(engines), _added(router)
        began_s, stolen = time.perf_counter(), stolen_s()
        found = self._load(plan, router, stub, repeat + 1)
        share = (stolen_s() - stolen) / (time.perf_counter() - began_s)
        of_cell = {**figures.figures_of(found, idle), "stolen_share": share}
        cell = RouterCell(router.arm, router.mode, plan.kind, plan.streams, repeat, of_cell)
        if router.mode == arms.DISAGGREGATED:
            cell.figures["handoffs_missing"] = float(_handoffs_missing(engines) - missing)
        for where, before in added.items():
            at_s = bucket_percentile(before, _added(router)[where], 99)
            cell.figures[f"{where} p99_ms"] = None if at_s is None else at_s * 1e3
        self.raw.append({**asdict(cell), "failures": found["failures"], "window": found["window"]})
        self.progress.line(
            f"{repeat + 1}: {router.name}, {plan.streams} {plan.kind}: "
            + ", ".join(f"{name} {report.cell(value)}" for name, value in cell.figures.items())
            + (f" {found['failures']}" if found["failures"] else "")
        )
        return cell

    def _load(self, plan: CellPlan, router: RouterArm, stub: int, seed: int) -> dict[str, Any]:
        """Run the load generator on a router."""
        spec = Spec(port=router.port, pids=router.pids, others=(stub,), seed=seed, **asdict(plan))
        command = [sys.executable, "-m", "headway.bench.router.load", json.dumps(asdict(spec))]
        pipes: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with running(command, core=self.cores[0], **pipes) as process:
            out, said = process.communicate()
        if process.returncode:
            raise ArmError(f"the load generator failed: {said.strip()[-300:]}")
        found: dict[str, Any] = json.loads(out)
        return found


def _stolen(cell: RouterCell) -> float:
    return cell.figures["stolen_share"] or 0.0


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
