"""How true the step times of `headway.gpus` are: against vLLM as others measured it.

Time per output token of Llama-70B fp8 in closed loops of 4 to 64 requests, 159 points on H100,
H200 and B200 (`data/llama70b_fp8_vllm.csv`, from ai-dynamo/aiconfigurator 095f58a51, Apache-2.0).
Each GPU is also judged by the calibration of the others. `--fit` prints what fits each best.
"""

import argparse
import csv
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from headway.bench.judge.spread import Spread
from headway.bench.report import document as report
from headway.bench.report.document import Goal
from headway.core.hardware.gpu import GPU_BY_NAME
from headway.core.hardware.kernels import Roofline
from headway.core.hardware.shape import model_shape
from headway.core.hardware.step import Calibration, Prefill, StepTimes
from headway.gpus import CALIBRATIONS, kernels
from headway.models.known import CONFIG_BY_NAME

DATA: Final = Path(__file__).parent / "data" / "llama70b_fp8_vllm.csv"
STEP_TOKENS: Final = 8_192
"""vLLM's own limit on these GPUs."""
MEAN: Final = 0.05
WORST: Final = 0.15
JUDGED: Final = ("h100-sxm", "h200-sxm")
"""GPUs that the targets name; B200's tables are faulty at few tokens."""
LLAMA_70B: Final = model_shape(
    CONFIG_BY_NAME["llama-3.1-70b"], name="Llama-3.3-70B fp8", quantized="fp8"
)
"""Both releases have the same dimensions."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement of a closed loop: requests at once, tokens of each, seconds a token."""

    gpu: str
    gpus: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Relative errors of TPOT: mean of their sizes, the worst, the mean with its sign."""

    gpu: str
    kernels: str
    points: int
    mean: float
    worst: float
    bias: float


def points() -> list[Point]:
    """What was measured."""
    with DATA.open(newline="") as file:
        return [
            Point(
                row["gpu"],
                int(row["tensor_parallel_size"]),
                int(row["concurrency"]),
                int(row["prompt_tokens"]),
                int(row["output_tokens"]),
                float(row["tpot_ms"]) / 1e3,
            )
            for row in csv.DictReader(file)
        ]


def tpot_s(times: StepTimes, point: Point) -> float:
    """Of a closed loop: a token waits for a step, and for the prompts that come meanwhile.

    While a request writes its tokens each other one ends once, and the next one's prompt is
    computed in steps that hold everybody up.
    """
    context = point.prompt_tokens + point.output_tokens // 2
    others = point.requests - 1

    def decodes(count: int) -> dict[str, int]:
        return {"decodes": count, "decode_context_tokens": count * context}

    plain_s = times.seconds(**decodes(point.requests))
    room = STEP_TOKENS - others
    held_s = sum(
        times.seconds([Prefill(min(room, point.prompt_tokens - done), done)], **decodes(others))
        - plain_s
        for done in range(0, point.prompt_tokens, room)
    )
    return plain_s + others * held_s / point.output_tokens


@cache
def sums(gpu: str, gpus: int, *, roofline: bool) -> StepTimes:
    """Step times without calibration."""
    spec = GPU_BY_NAME[gpu]
    of = Roofline(spec) if roofline else kernels(gpu)
    return StepTimes(LLAMA_70B, spec, of, gpus=gpus, calibration=Calibration(0.0, 1.0))


def errors(
    found: Sequence[Point], calibration: Calibration, *, roofline: bool = False
) -> list[float]:
    """Relative error of each point."""
    return [
        (
            calibration.fixed_s
            + calibration.efficiency * tpot_s(sums(each.gpu, each.gpus, roofline=roofline), each)
        )
        / each.tpot_s
        - 1
        for each in found
    ]


def fitted(found: Sequence[Point]) -> Calibration:
    """The calibration of the least squares of relative errors."""
    xs = [tpot_s(sums(each.gpu, each.gpus, roofline=False), each) for each in found]
    weights = [each.tpot_s**-2 for each in found]
    total = sum(weights)
    x = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    y = sum(w * each.tpot_s for w, each in zip(weights, found, strict=True)) / total
    slope = sum(
        w * (each_x - x) * (each.tpot_s - y)
        for w, each_x, each in zip(weights, xs, found, strict=True)
    ) / sum(w * (each_x - x) ** 2 for w, each_x in zip(weights, xs, strict=True))
    return Calibration(fixed_s=y - slope * x, efficiency=slope)


def accuracy(gpu: str, *, by: str, found: Sequence[Point], calibration: Calibration) -> Accuracy:
    """How far off the points of one GPU are."""
    of = errors(found, calibration, roofline=by == "roofline")
    sizes = [abs(error) for error in of]
    return Accuracy(gpu, by, len(of), statistics.mean(sizes), max(sizes), statistics.mean(of))


def measured() -> list[Accuracy]:
    """Each GPU by its own calibration, by the others', and by its specification alone."""
    found: list[Accuracy] = []
    every = points()
    for gpu in sorted({each.gpu for each in every}):
        own = [each for each in every if each.gpu == gpu]
        others = [each for each in every if each.gpu in JUDGED and each.gpu != gpu]
        for by, calibration in (
            ("tables", CALIBRATIONS[gpu]),
            ("tables, calibrated on other GPUs", fitted(others)),
            ("roofline", Calibration()),
        ):
            found.append(accuracy(gpu, by=by, found=own, calibration=calibration))
    return found


def goals(found: Sequence[Accuracy]) -> list[Goal]:
    """The targets."""
    judged = [each for each in found if each.gpu in JUDGED and each.kernels == "tables"]
    points_of = sum(each.points for each in judged)
    mean = sum(each.mean * each.points for each in judged) / points_of
    worst = max(each.worst for each in judged)
    name = f"TPOT of Llama-70B fp8, {points_of} points on {' and '.join(JUDGED)}"
    return [
        Goal(f"{name}: mean error", MEAN, True, Spread(mean, mean, mean)),
        Goal(f"{name}: worst error", WORST, True, Spread(worst, worst, worst)),
    ]


def table(found: Sequence[Accuracy]) -> list[list[str]]:
    """For the terminal."""
    rows = [["gpu", "kernels", "points", "mean error", "worst", "bias"]]
    for each in found:
        figures = (each.mean, each.worst)
        cells = [f"{figure:.1%}" for figure in figures] + [f"{each.bias:+.1%}"]
        rows.append([each.gpu, each.kernels, str(each.points), *cells])
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Print the errors and write them; 1 if a target isn't met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--fit", action="store_true", help="print the best calibration of each GPU")
    parser.add_argument("--quick", action="store_true", help="the same: it takes a second")
    options = parser.parse_args(argv)
    if options.fit:
        for gpu in CALIBRATIONS:
            print(gpu, fitted([each for each in points() if each.gpu == gpu]))
        return 0
    found = measured()
    for row in table(found):
        print("  ".join(cell.ljust(34 if i == 1 else 12) for i, cell in enumerate(row)).rstrip())
    targets = goals(found)
    raw: Any = [asdict(each) for each in found]
    for goal in targets:
        value = goal.measured.value if goal.measured else 0.0
        said = "met" if goal.met else "NOT met"
        print(f"{goal.name}: {value:.1%}, at most {goal.bound:.0%}: {said}")
    if options.json:
        configuration = {"data": DATA.name, "step_tokens": STEP_TOKENS}
        report.write(
            options.json,
            report.document(seed=0, configuration=configuration, raw=raw, targets=targets),
        )
    return 0 if all(goal.met for goal in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
