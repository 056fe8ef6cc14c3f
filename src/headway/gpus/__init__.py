"""Kernels of GPUs that were measured, and step times of models on any GPU that is known.

The tables are ai-dynamo/aiconfigurator's (Apache-2.0, LICENSE in `tables`), regrouped by
`scripts/gpu_tables.py`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

from headway.core.hardware.curve import Curve, Surface
from headway.core.hardware.gpu import Gpu, gpu_named
from headway.core.hardware.kernels import Kernels, MeasuredKernels, Roofline, Tables
from headway.core.hardware.shape import ModelShape
from headway.core.hardware.step import Calibration, StepTimes

_US: Final = 1e-6
MUCH: Final = 1.5
CALIBRATIONS: Final[Mapping[str, Calibration]] = {
    "h100-sxm": Calibration(fixed_s=0.00193, efficiency=0.944),
    "h200-sxm": Calibration(fixed_s=0.00140, efficiency=0.937),
    "b200-sxm": Calibration(fixed_s=0.00064, efficiency=0.876),
}
"""Fitted to measured TPOT of Llama-70B fp8 on vLLM (`benchmarks/hardware_accuracy.py --fit`)."""

TPOT_ERROR: Final[Mapping[str, float]] = {"h100-sxm": 0.032, "h200-sxm": 0.033, "b200-sxm": 0.093}
"""Mean error of TPOT of that model, calibrated (`benchmarks/hardware_accuracy.py`)."""
ROOFLINE_ERROR: Final = 0.10
"""The same of GPUs' specifications alone, on those three."""


def trust(gpu: str) -> str:
    """What the step times of a GPU are worth, in words. Raises SettingError."""
    name = gpu_named(gpu).name
    if name in TPOT_ERROR:
        return f"measured kernels; time per token {TPOT_ERROR[name]:.0%} off on average"
    if kernels(name).measured:
        return "measured kernels, not checked against an engine"
    return (
        "from its specification; time per token of other GPUs, so computed, is "
        f"{ROOFLINE_ERROR:.0%} off on average"
    )


def step_times(
    model: ModelShape, gpu: str, *, gpus: int = 1, graph_sizes: Sequence[int] = ()
) -> StepTimes:
    """Step times of an engine. Raises SettingError for a GPU or a number of them that can't be."""
    spec = gpu_named(gpu)
    return StepTimes(
        model,
        spec,
        kernels(spec.name),
        gpus=gpus,
        calibration=CALIBRATIONS.get(spec.name),
        graph_sizes=graph_sizes,
    )


@cache
def kernels(gpu: str) -> Kernels:
    """Measured ones where there is a table, else those of the specification."""
    spec: Gpu = gpu_named(gpu)
    file = resources.files(__name__) / "tables" / f"{spec.name}.json"
    if not file.is_file():
        return Roofline(spec)
    return MeasuredKernels(spec, _tables(json.loads(file.read_text("utf-8"))))


def _tables(read: Mapping[str, Any]) -> Tables:
    return Tables(
        linear_by_shape={
            dtype: {(key[0], key[1]): _mended(curve) for key, curve in _curves(matrix)}
            for dtype, matrix in read["linear"].items()
        },
        prefill_by_heads={
            dtype: {(key[0], key[1]): curve for key, curve in _curves(matrix, power=2)}
            for dtype, matrix in read["prefill_attention"].items()
        },
        decode_by_heads={
            dtype: _surfaces(matrix) for dtype, matrix in read["decode_attention"].items()
        },
        all_reduce_by_gpus={key[0]: curve for key, curve in _curves(read["all_reduce"])},
    )


def _curves(
    matrix: Mapping[str, Any], *, power: float = 0.0
) -> Iterator[tuple[tuple[int, ...], Curve]]:
    for key, times in matrix["times_us"].items():
        known = [(x, _US * y) for x, y in zip(matrix["sizes"], times, strict=True) if y is not None]
        xs, ys = zip(*known, strict=True)
        yield tuple(int(part) for part in key.split(",")), Curve(xs, ys, power=power)


def _surfaces(matrix: Mapping[str, Any]) -> dict[tuple[int, int], Surface]:
    found: dict[tuple[int, int], dict[int, Curve]] = {}
    for (heads, kv_heads, requests), curve in _curves(matrix):
        found.setdefault((heads, kv_heads), {})[requests] = curve
    return {
        key: Surface(sorted(curves), [curves[requests] for requests in sorted(curves)])
        for key, curves in found.items()
    }


def _mended(curve: Curve) -> Curve:
    """Without products that took much longer than a larger one (B200, of few tokens)."""
    ys: list[float] = []
    for x in reversed(curve.sizes):
        y = curve(x)
        ys.append(ys[-1] if ys and y > MUCH * ys[-1] else y)
    return Curve(curve.sizes, ys[::-1])
