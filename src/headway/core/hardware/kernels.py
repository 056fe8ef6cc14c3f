"""How long single kernels take on a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from headway.core.errors import SettingError
from headway.core.hardware.curve import Curve, Surface
from headway.core.hardware.gpu import Gpu
from headway.core.hardware.shape import BYTES_BY_DTYPE, WeightDtype

HEAD_DIM: Final = 128
"""Of the attention kernels that were measured."""
TILE_TOKENS: Final = 64
"""A matrix product computes at least so many rows."""
LAUNCH_S: Final = 4e-6
COMPUTE_SHARE: Final = 0.72
MEMORY_SHARE: Final = 0.8
PREFILL_SHARE: Final = 0.6
LINK_SHARE: Final = 0.75
"""What kernels reach of a GPU's specification, where its own weren't measured: prefill and decode
of Llama 8B and 70B on A100, H100 and H200 are then within a third of the measured tables."""
SIZES: Final = tuple(float(2**i) for i in range(15))
CONTEXTS: Final = tuple(float(2**i) for i in range(4, 18))


class Kernels(Protocol):
    """One GPU's kernels; every time in seconds."""

    measured: bool

    def linear(self, n: int, k: int, dtype: WeightDtype) -> Curve:
        """(m, k) x (k, n), by m."""

    def prefill_attention(self, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Curve:
        """Causal attention of one prompt in one layer, by its length in tokens."""

    def decode_attention(self, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Surface:
        """Attention of one token each in one layer, by requests and their context in tokens."""

    def all_reduce(self, gpus: int) -> Curve:
        """By the bytes that each of them has."""


class Roofline:
    """Kernels of a GPU of which only the specification is known."""

    measured = False

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def linear(self, n: int, k: int, dtype: WeightDtype) -> Curve:
        """Whichever is slower, computing or moving the matrices."""
        gpu = self._gpu
        flops = gpu.flops(dtype) * COMPUTE_SHARE
        bytes_per_s = gpu.memory_bytes_per_s * MEMORY_SHARE
        size = BYTES_BY_DTYPE[dtype]

        def seconds(m: float) -> float:
            rows = max(m, TILE_TOKENS)
            moved = n * k * size + 2 * m * (n + k)
            return LAUNCH_S + max(2 * rows * n * k / flops, moved / bytes_per_s)

        return Curve(SIZES, [seconds(m) for m in SIZES])

    def prefill_attention(self, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Curve:
        """Two products over half the square."""
        del kv_heads, dtype  # computing takes longer than reading the KV
        flops = self._gpu.flops("bfloat16") * PREFILL_SHARE
        times = [LAUNCH_S + 2 * heads * head_dim * x * x / flops for x in CONTEXTS]
        return Curve(CONTEXTS, times, power=2)

    def decode_attention(self, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Surface:
        """As long as reading the KV takes."""
        del heads
        read = 2 * kv_heads * head_dim * BYTES_BY_DTYPE[dtype]
        bytes_per_s = self._gpu.memory_bytes_per_s * MEMORY_SHARE
        curves = [
            Curve(CONTEXTS, [2 * LAUNCH_S + b * read * c / bytes_per_s for c in CONTEXTS])
            for b in SIZES
        ]
        return Surface(SIZES, curves)

    def all_reduce(self, gpus: int) -> Curve:
        """Twice the part of each that the others have, over the link."""
        share = 2 * (gpus - 1) / gpus / (self._gpu.link_bytes_per_s * LINK_SHARE)
        sizes = [float(2**i) for i in range(7, 30)]
        return Curve(sizes, [2 * LAUNCH_S + share * size for size in sizes])


@dataclass(frozen=True, slots=True)
class Tables:
    """Kernels as they were measured, seconds.

    linear: by dtype, then (n, k). prefill, decode: by KV dtype, then (heads, kv_heads). all_reduce:
    by GPUs.
    """

    linear_by_shape: Mapping[str, Mapping[tuple[int, int], Curve]]
    prefill_by_heads: Mapping[str, Mapping[tuple[int, int], Curve]]
    decode_by_heads: Mapping[str, Mapping[tuple[int, int], Surface]]
    all_reduce_by_gpus: Mapping[int, Curve]


class MeasuredKernels:
    """Kernels that were measured; between the shapes measured, times are linear in n and k.

    What wasn't measured (a dtype, numbers of GPUs) is the roofline's.
    """

    measured = True

    def __init__(self, gpu: Gpu, tables: Tables) -> None:
        self._tables = tables
        self._roofline = Roofline(gpu)

    def linear(self, n: int, k: int, dtype: WeightDtype) -> Curve:
        """Interpolated from the four shapes around it."""
        by_shape = self._tables.linear_by_shape.get(dtype)
        if not by_shape:
            return self._roofline.linear(n, k, dtype)
        widths = sorted({shape[0] for shape in by_shape})
        depths = sorted({shape[1] for shape in by_shape})
        sizes = next(iter(by_shape.values())).sizes

        def seconds(m: float) -> float:
            by_width = [Curve(depths, [by_shape[w, d](m) for d in depths])(k) for w in widths]
            return Curve(widths, by_width)(n)

        return Curve(sizes, [seconds(m) for m in sizes])

    def prefill_attention(self, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Curve:
        """Of the measured shape next to it; its computing grows with heads and their width."""
        by_heads = self._tables.prefill_by_heads.get(dtype)
        if not by_heads:
            return self._roofline.prefill_attention(heads, kv_heads, head_dim, dtype)
        near = _nearest(by_heads, heads, kv_heads)
        return by_heads[near].times(heads * head_dim / (near[0] * HEAD_DIM))

    def decode_attention(self, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Surface:
        """Of the measured shape next to it; its KV grows with KV heads and their width."""
        by_heads = self._tables.decode_by_heads.get(dtype)
        if not by_heads:
            return self._roofline.decode_attention(heads, kv_heads, head_dim, dtype)
        near = _nearest(by_heads, heads, kv_heads)
        return by_heads[near].times(kv_heads * head_dim / (near[1] * HEAD_DIM))

    def all_reduce(self, gpus: int) -> Curve:
        """As measured between so many."""
        found = self._tables.all_reduce_by_gpus.get(gpus)
        return found if found is not None else self._roofline.all_reduce(gpus)


def _nearest(
    shapes: Mapping[tuple[int, int], object], heads: int, kv_heads: int
) -> tuple[int, int]:
    """The shape whose heads and KV heads differ by the smallest factors."""

    def far(shape: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        factors = [max(a / b, b / a) for a, b in zip(shape, (heads, kv_heads), strict=True)]
        return factors[0] * factors[1], shape

    if not shapes:
        raise SettingError("tables", "have no attention; use those of headway.gpus")
    return min(shapes, key=far)
