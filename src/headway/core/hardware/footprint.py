"""What a model takes of GPU memory, from its config.json as Hugging Face has it.

Weights are counted from the dimensions where the files' own size isn't known. KV of a token follows
vLLM's cache: keys and values of every KV head and layer, of a sliding window no more than its
tokens, and for latent attention (MLA) one vector a layer, which every GPU keeps whole.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headway.core.hardware import quantization
from headway.core.hardware.dimensions import (
    Dimensions,
    attention_layers,
    context_tokens,
    size,
    starts,
    window_tokens,
)

_UNKNOWN: Final = ("deepseek_v4", "minimax_m3")
"""Beginnings of model types whose KV follows none of these rules."""
_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayers:
    """Layers that keep KV alike.

    heads: KV heads, shared out by tensor parallelism; 0: one vector that every GPU has whole.
    elements: of a token and head, keys and values together. window_tokens: how far back they see;
    None: everything. certain: False where only the model's code says which layers have the window.
    """

    layers: int
    heads: int
    elements: int
    window_tokens: int | None = None
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFootprint:
    """A model's sizes.

    weights_bytes: as vLLM holds them, on all GPUs together. context_tokens: prompt and answer, as
    the model is meant to be used; None: not said. kv: what keeps KV; layers with a state of fixed
    size (Mamba, linear attention) aren't in it. kv_heads: 0 for latent attention. mlp: the widest
    MLP, elements. expert_width: what one token's experts compute, elements. kv_element_bytes: of
    its KV cache unless told otherwise; 1 where its files have scales for one in fp8. splits: widths
    that tensor parallelism has to divide.
    """

    weights_bytes: int
    context_tokens: int | None
    kv: tuple[KvLayers, ...]
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    mlp: int
    vocabulary: int
    expert_width: int = 0
    kv_element_bytes: int = _BYTES
    splits: tuple[int, ...] = ()


def footprint(
    config: Mapping[str, Any], *, files_bytes: int | None = None, quantized: str | None = None
) -> ModelFootprint | None:
    """The sizes of a model; None where its configuration doesn't tell them.

    config: of config.json. files_bytes: size of its weights' files, preferred to counting.
    quantized: what vLLM is told to quantise to while loading (--quantization).
    """
    of = Dimensions(config)
    if not of.told or starts(of.text, *_UNKNOWN):
        return None
    weights_bytes = _weights_bytes(of, files_bytes, quantized)
    if weights_bytes is None:
        return None
    return ModelFootprint(
        weights_bytes=weights_bytes,
        context_tokens=context_tokens(config),
        kv=tuple(_kv(of)),
        layers=of.layers,
        heads=of.heads,
        kv_heads=0 if of.latent else of.kv_heads,
        hidden=of.hidden,
        mlp=max(of.mlp, of.expert),
        vocabulary=of.vocabulary,
        expert_width=of.experts_per_token * max(of.hidden, of.expert),
        kv_element_bytes=1 if of.stored.get("kv_cache_scheme") else _BYTES,
        splits=tuple(width for width in (of.mlp, of.expert) if width),
    )


def _kv(of: Dimensions) -> Iterator[KvLayers]:
    text = of.text
    if of.latent:
        # Sparse attention keeps a key of its own for choosing tokens, a byte an element.
        index = size(text, "index_head_dim") // _BYTES
        elements = of.latent + size(text, "qk_rope_head_dim") + index
        yield KvLayers(layers=of.layers, heads=0, elements=elements)
        return
    full, windowed, certain = attention_layers(text, of.layers)
    if full:
        dim = size(text, "global_head_dim") or of.head_dim
        whole = size(text, "num_global_key_value_heads") or of.kv_heads
        yield KvLayers(layers=full, heads=whole, elements=2 * dim)
    if windowed:
        yield KvLayers(
            layers=windowed,
            heads=of.kv_heads,
            elements=2 * of.head_dim,
            window_tokens=window_tokens(text) or None,
            certain=certain,
        )


def _weights_bytes(of: Dimensions, files_bytes: int | None, quantized: str | None) -> int | None:
    if files_bytes and (of.stored or not quantized):
        # vLLM holds in two bytes what a file has in four.
        halved = of.text.get("dtype", of.text.get("torch_dtype")) == "float32"
        return files_bytes // 2 if halved and not of.stored else files_bytes
    bits = quantization.bits(of.stored, quantized)
    if bits is None or not of.mlp + of.expert:
        return None
    plain = of.attention if bits.without_attention else 0
    quantised_bits = (of.linear - plain) * bits.linear + of.experts * bits.experts
    return round(quantised_bits / 8) + _BYTES * (plain + of.table)
