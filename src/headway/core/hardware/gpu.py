"""GPUs as their makers describe them."""

from dataclasses import dataclass
from typing import Final

from headway.core.errors import SettingError
from headway.core.hardware.shape import WeightDtype

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; dense peak rates, one direction of its link.

    device_name: as its driver says it. link_bytes_per_s: to the other GPUs of its node (NVLink, or
    PCIe where there is none). fp8_flops: None where it has no such units.
    """

    name: str
    device_name: str
    capability: tuple[int, int]
    memory_bytes: int
    memory_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None
    link_bytes_per_s: float

    def flops(self, dtype: WeightDtype) -> float:
        """Peak rate; a dtype without units of its own is computed in bfloat16."""
        return self.fp8_flops if dtype == "fp8" and self.fp8_flops else self.bf16_flops


def _gpu(
    name: str,
    device_name: str,
    capability: tuple[int, int],
    *,
    gib: float,
    tb_per_s: float,
    bf16_tflops: float,
    fp8_tflops: float | None,
    link_gb_per_s: float,
) -> Gpu:
    return Gpu(
        name=name,
        device_name=device_name,
        capability=capability,
        memory_bytes=round(gib * GIB),
        memory_bytes_per_s=tb_per_s * 1e12,
        bf16_flops=bf16_tflops * 1e12,
        fp8_flops=fp8_tflops * 1e12 if fp8_tflops else None,
        link_bytes_per_s=link_gb_per_s * 1e9,
    )


_GPUS: Final = (
    _gpu(
        "a100-sxm",
        "NVIDIA A100-SXM4-80GB",
        (8, 0),
        gib=79.25,
        tb_per_s=2.039,
        bf16_tflops=312,
        fp8_tflops=None,
        link_gb_per_s=300,
    ),
    _gpu(
        "h100-sxm",
        "NVIDIA H100 80GB HBM3",
        (9, 0),
        gib=79.11,
        tb_per_s=3.35,
        bf16_tflops=989,
        fp8_tflops=1978,
        link_gb_per_s=450,
    ),
    _gpu(
        "h200-sxm",
        "NVIDIA H200",
        (9, 0),
        gib=139.80,
        tb_per_s=4.8,
        bf16_tflops=989,
        fp8_tflops=1978,
        link_gb_per_s=450,
    ),
    _gpu(
        "b200-sxm",
        "NVIDIA B200",
        (10, 0),
        gib=178.35,
        tb_per_s=7.7,
        bf16_tflops=2250,
        fp8_tflops=4500,
        link_gb_per_s=900,
    ),
    _gpu(
        "gb200",
        "NVIDIA GB200",
        (10, 0),
        gib=184.0,
        tb_per_s=8.0,
        bf16_tflops=2500,
        fp8_tflops=5000,
        link_gb_per_s=900,
    ),
    _gpu(
        "h100-pcie",
        "NVIDIA H100 PCIe",
        (9, 0),
        gib=79.18,
        tb_per_s=2.0,
        bf16_tflops=756,
        fp8_tflops=1513,
        link_gb_per_s=64,
    ),
    _gpu(
        "l40s",
        "NVIDIA L40S",
        (8, 9),
        gib=44.39,
        tb_per_s=0.864,
        bf16_tflops=362,
        fp8_tflops=733,
        link_gb_per_s=32,
    ),
    _gpu(
        "a10g",
        "NVIDIA A10G",
        (8, 6),
        gib=22.06,
        tb_per_s=0.6,
        bf16_tflops=70,
        fp8_tflops=None,
        link_gb_per_s=32,
    ),
    _gpu(
        "l4",
        "NVIDIA L4",
        (8, 9),
        gib=22.03,
        tb_per_s=0.3,
        bf16_tflops=121,
        fp8_tflops=242,
        link_gb_per_s=32,
    ),
)
GPU_BY_NAME: Final = {gpu.name: gpu for gpu in _GPUS}


def gpu_named(name: str) -> Gpu:
    """The GPU of that name. Raises SettingError, which lists those known."""
    found = GPU_BY_NAME.get(name.lower().replace("_", "-"))
    if found is None:
        raise SettingError("gpu", f"{name!r} isn't known; use one of: {', '.join(GPU_BY_NAME)}")
    return found
