"""How long one engine step takes: kernels added up for what the step computes."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.hardware.curve import Curve
from headway.core.hardware.gpu import Gpu
from headway.core.hardware.kernels import LAUNCH_S, MEMORY_SHARE, Kernels
from headway.core.hardware.shape import BYTES_BY_DTYPE, ModelShape, Shard

ACTIVATION_BYTES: Final = 2
GROUPED_SHARE: Final = 0.45
"""What grouped products of experts reach of a GPU's peak rate: an assumption."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What vLLM takes beside and instead of the sum of its kernels.

    fixed_s: of every step (scheduling, sampling, what the host adds). efficiency: the kernels' time
    in CUDA graphs, as a share of theirs when measured one by one.
    """

    fixed_s: float = 0.0016
    efficiency: float = 0.94


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefill of `tokens` of a prompt of which `context_tokens` are computed."""

    tokens: int
    context_tokens: int = 0


class StepTimes:
    """Seconds that steps of one model take on one kind of GPU, `gpus` of them in parallel.

    The kernels' tables are summed once, so that a step costs a few look-ups.

    graph_sizes: numbers of tokens, ascending, to which a step is padded by CUDA graphs; larger
    steps aren't.
    """

    def __init__(
        self,
        model: ModelShape,
        gpu: Gpu,
        kernels: Kernels,
        *,
        gpus: int = 1,
        calibration: Calibration | None = None,
        graph_sizes: Sequence[int] = (),
    ) -> None:
        shard = model.on(gpus)
        self.model, self.gpus = model, gpus
        self._calibration = calibration or Calibration()
        self._graph_sizes = tuple(graph_sizes)
        layer = _linear(model, shard, gpu, kernels)
        if gpus > 1:
            layer = layer.plus(_two_all_reduces(model, kernels.all_reduce(gpus)))
        self._tokens = layer.times(model.layers)
        self._output = kernels.linear(shard.vocabulary, model.hidden, "bfloat16")
        heads = (shard.heads, shard.kv_heads, model.head_dim, model.kv_dtype)
        self._prefill = kernels.prefill_attention(*heads).times(model.layers)
        self._decode = kernels.decode_attention(*heads).times(model.layers)

    def seconds(
        self,
        chunks: Iterable[Prefill] = (),
        *,
        decodes: int = 0,
        decode_context_tokens: int = 0,
    ) -> float:
        """Of a step. decode_context_tokens: of all decodes together."""
        tokens, attention_s, ending = decodes, 0.0, decodes
        for chunk in chunks:
            tokens += chunk.tokens
            ending += 1
            attention_s += self._chunk(chunk)
        if not tokens:
            return 0.0
        if decodes:
            attention_s += self._decode(decodes, decode_context_tokens / decodes)
        kernels_s = self._tokens(self._padded(tokens)) + self._output(ending) + attention_s
        return self._calibration.fixed_s + self._calibration.efficiency * kernels_s

    def prompt_seconds(self, prompt_tokens: int, *, step_tokens: int) -> float:
        """To compute a prompt alone, in steps of at most `step_tokens`."""
        starts = range(0, prompt_tokens, step_tokens)
        return sum(
            self.seconds([Prefill(min(step_tokens, prompt_tokens - done), done)]) for done in starts
        )

    def _chunk(self, chunk: Prefill) -> float:
        """Attention of a chunk: what the longer prompt takes more, at least what it takes alone."""
        alone_s = self._prefill(chunk.tokens)
        if not chunk.context_tokens:
            return alone_s
        whole_s = self._prefill(chunk.context_tokens + chunk.tokens)
        return max(alone_s, whole_s - self._prefill(chunk.context_tokens))

    def _padded(self, tokens: int) -> int:
        index = bisect_left(self._graph_sizes, tokens)
        return self._graph_sizes[index] if index < len(self._graph_sizes) else tokens


def _two_all_reduces(model: ModelShape, by_bytes: Curve) -> Curve:
    """After attention and after the MLP, by tokens."""
    width = ACTIVATION_BYTES * model.hidden
    sizes = by_bytes.sizes
    return Curve([size / width for size in sizes], [2 * by_bytes(size) for size in sizes])


def _linear(model: ModelShape, shard: Shard, gpu: Gpu, kernels: Kernels) -> Curve:
    """The linear layers of one layer, by tokens."""
    dtype = model.weight_dtype
    total = kernels.linear(shard.qkv, model.hidden, dtype)
    total = total.plus(kernels.linear(model.hidden, shard.attention, dtype))
    width = shard.shared_mlp if model.experts else shard.mlp
    if width:
        total = total.plus(kernels.linear(2 * width, model.hidden, dtype))
        total = total.plus(kernels.linear(model.hidden, width, dtype))
    return total.plus(_experts(model, shard, gpu, total)) if model.experts else total


def _experts(model: ModelShape, shard: Shard, gpu: Gpu, sizes: Curve) -> Curve:
    """The experts of one layer, by tokens; estimated: tables have no grouped products.

    Routing is taken to be even. Reading the experts that any token chose, or computing all that
    was chosen, whichever is slower, as the same GPU would compute a dense layer of that work.
    """
    weights = 3 * shard.mlp * model.hidden
    moved = weights * BYTES_BY_DTYPE[model.weight_dtype] / (gpu.memory_bytes_per_s * MEMORY_SHARE)
    flops = gpu.flops(model.weight_dtype) * GROUPED_SHARE
    chosen = model.experts_per_token / model.experts

    def seconds(tokens: float) -> float:
        read = model.experts * (1.0 - math.pow(1.0 - chosen, tokens))
        computed = 2 * weights * tokens * model.experts_per_token / flops
        return 2 * LAUNCH_S + max(read * moved, computed)

    return Curve(sizes.sizes, [seconds(tokens) for tokens in sizes.sizes])
