"""What headway adds to the time in `schedule()`, against stock vLLM, without a model.

vLLM's real scheduler on made-up model output. In each cell (running, waiting)
stock vLLM, `parallel` and `slo` hold the same requests in one process and take
their steps in turn, step by step, so that noise of the machine meets all alike.
A ratio is that of the medians of one repeat; the spread is over repeats.
"""

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine"))

from harness import Driver, make_request, make_scheduler, model_dir
from vllm.v1.request import RequestStatus

from headway.bench.judge.spread import Spread, ratios, spread
from headway.bench.report import document as report
from headway.bench.report.document import Goal, ProgressLines
from headway.core.batching.settings import STOCK

ARMS: Final = (STOCK, "parallel", "slo")
BOUND: Final = 1.10
STEP_TOKENS: Final = 8_192
BLOCKS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Size:
    """One cell: requests that decode, requests that wait, whether a target names it."""

    running: int
    waiting: int
    is_target: bool

    def __str__(self) -> str:
        return f"({self.running}, {self.waiting})"


SIZES: Final = (Size(32, 0, False), Size(256, 4_096, True), Size(1_024, 10_000, True))


@dataclass(slots=True)
class Arm:
    """A scheduler that is ready to be measured, and its times of one repeat, seconds."""

    name: str
    driver: Driver
    times_s: list[float]

    def step(self, *, measured: bool) -> None:
        """One engine step; only `schedule()` is timed."""
        driver = self.driver
        begin_s = time.perf_counter()
        output = driver.scheduler.schedule()
        if measured:
            self.times_s.append(time.perf_counter() - begin_s)
        driver.take(output)


def prepare(folder: Path, name: str, size: Size) -> Arm:
    """A scheduler with `size.running` requests decoding and `size.waiting` queued.

    All seats are taken, as they are when a queue builds up. One in ten waiting
    prompts is long.
    """
    policy = None if name == STOCK else name
    scheduler = make_scheduler(
        folder, policy, seats=size.running, blocks=BLOCKS, budget=STEP_TOKENS
    )
    driver = Driver(scheduler)
    for _ in range(size.running):
        driver.add(make_request(100, output=6_000))
    while len(driver.first_token_step) < size.running:
        driver.step()
    for i in range(size.waiting):
        driver.add(make_request(3_000 if i % 10 == 0 else 200, output=10))
    return Arm(name, driver, [])


def turn_over(arms: Sequence[Arm], steps: int, *, churn: bool) -> None:
    """Steps of all arms in turn; with churn a request finishes and one starts in each step."""
    for step in range(steps):
        for arm in arms[step % len(arms) :] + arms[: step % len(arms)]:
            if churn:
                replace_one(arm.driver)
            arm.step(measured=True)


def replace_one(driver: Driver) -> None:
    """The request that runs longest leaves, so that a waiting one can start; one arrives."""
    scheduler = driver.scheduler
    oldest = scheduler.running[0].request_id
    scheduler.finish_requests(oldest, RequestStatus.FINISHED_ABORTED)
    driver.add(make_request(200, output=6_000))


Medians = dict[str, dict[str, float]]
"""Seconds in `schedule()` by kind of step, then by arm."""


def measure(folder: Path, size: Size, steps: int, progress: ProgressLines) -> Medians:
    """Median seconds in `schedule()` by kind of step and arm, of one repeat."""
    arms = [prepare(folder, name, size) for name in ARMS]
    found: Medians = {}
    gc.collect()
    for kind, churn in (("steady", False), ("churn", True)):
        if churn and not size.waiting:
            continue
        for arm in arms:
            for _ in range(5):
                arm.step(measured=False)
            arm.times_s.clear()
        turn_over(arms, steps, churn=churn)
        found[kind] = {arm.name: statistics.median(arm.times_s) for arm in arms}
        progress.line(
            f"{size} {kind}: "
            + ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in found[kind].items())
        )
    return found


Cells = dict[Size, list[Medians]]


def goals(cells: Cells) -> list[Goal]:
    """One for each cell with a target and each policy, on steps in which requests come and go."""
    return [
        Goal(f"schedule() {arm} / stock at {size}", BOUND, at_most=True, measured=measured)
        for size, repeats in cells.items()
        if size.is_target
        for arm in ARMS[1:]
        for measured in (worst(repeats, arm),)
    ]


def worst(repeats: Sequence[Medians], arm: str) -> Spread | None:
    """The larger of the ratios on steady steps and on steps with churn."""
    kinds = repeats[0].keys()
    found = [ratio_of(repeats, kind, arm) for kind in kinds]
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.value, default=None)


def ratio_of(repeats: Sequence[Medians], kind: str, arm: str) -> Spread | None:
    """An arm against stock on one kind of steps, repeat by repeat."""
    return ratios([r[kind][arm] for r in repeats], [r[kind][STOCK] for r in repeats])


def rows(cells: Cells) -> list[tuple[object, ...]]:
    """The table: milliseconds of each arm and its ratio to stock."""
    return [
        (
            f"{size} {kind}",
            *(spread([r[kind][arm] * 1e3 for r in repeats]) for arm in ARMS),
            *(ratio_of(repeats, kind, arm) for arm in ARMS[1:]),
        )
        for size, repeats in cells.items()
        for kind in repeats[0]
    ]


def main() -> int:
    """Measure, print a table and, if asked, write the report."""
    options = _options()
    progress = ProgressLines()
    repeats = options.repeats or (2 if options.quick else 5)
    steps = 30 if options.quick else 60
    cells: Cells = {size: [] for size in SIZES}
    with tempfile.TemporaryDirectory() as name:
        folder = model_dir(Path(name))
        for _ in range(repeats):
            for size in SIZES:
                cells[size].append(measure(folder, size, steps, progress))
    found = goals(cells)
    headers = ("(running, waiting)", *(f"{arm} ms" for arm in ARMS), "parallel/vllm", "slo/vllm")
    print(report.table(headers, rows(cells)))
    print()
    print(report.goals_table(found))
    if options.json is not None:
        configuration: dict[str, Any] = {
            "repeats": repeats,
            "steps": steps,
            "step_tokens": STEP_TOKENS,
            "blocks": BLOCKS,
            "quick": options.quick,
        }
        raw = [{**asdict(size), "repeats": values} for size, values in cells.items()]
        report.write(
            options.json,
            report.document(seed=0, configuration=configuration, raw=raw, targets=found),
        )
    return 0


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--repeats", type=int, help="how often everything is measured")
    made.add_argument("--quick", action="store_true", help="a shorter run of the same shape")
    made.add_argument("--json", type=Path, metavar="PATH", help="write the report here")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
