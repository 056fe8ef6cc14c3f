"""What a model takes of GPU memory, from its config.json as Hugging Face has it.

Weights are counted from the dimensions where the files' own size isn't known. KV of a token follows
vLLM's cache: keys and values of every KV head and layer, of a sliding window no more than its
tokens, and for latent attention (MLA) one vector a layer, which every GPU keeps whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.core.hardware import quantization

_INNER: Final = ("text_config", "llm_config", "language_config")
"""Where models that read images too keep what is said of their decoder."""
_FULL: Final = frozenset({"full_attention", "attention", "global_attention", "hybrid"})
_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention", "local_attention"})
_UNKNOWN: Final = ("deepseek_v4", "minimax_m3")
"""Beginnings of model types whose KV follows none of these rules."""
_UNGATED: Final = frozenset({"gelu_new", "gelu", "gelu_fast", "relu", "relu2"})
"""Activations of MLPs with two matrices; those with a gate have three."""
_UNSCALED: Final = frozenset({"default", "su", "longrope", "llama3", "mrope", "proportional"})
"""Kinds of rotary scaling that max_position_embeddings already counts in."""
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
    text = decoder(config)
    layers, heads = _size(text, "num_hidden_layers"), _size(text, "num_attention_heads")
    hidden, vocabulary = _size(text, "hidden_size"), _size(text, "vocab_size")
    if not (layers and heads and hidden and vocabulary):
        return None
    if _starts(text, *_UNKNOWN):
        return None
    parameters = _Parameters(text, layers, heads, hidden, vocabulary)
    weights_bytes = _weights_bytes(config, text, parameters, files_bytes, quantized)
    if weights_bytes is None:
        return None
    return ModelFootprint(
        weights_bytes=weights_bytes,
        context_tokens=context_tokens(config),
        kv=tuple(_kv(text, layers, heads, hidden)),
        layers=layers,
        heads=heads,
        kv_heads=0 if _size(text, "kv_lora_rank") else _kv_heads(text, heads),
        hidden=hidden,
        mlp=max(parameters.mlp, parameters.expert),
        vocabulary=vocabulary,
        expert_width=_size(text, "num_experts_per_tok", "experts_per_token", "top_k_experts")
        * max(hidden, parameters.expert),
        kv_element_bytes=1 if _stored(config, text).get("kv_cache_scheme") else _BYTES,
        splits=tuple(width for width in (parameters.mlp, parameters.expert) if width),
    )


def decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a configuration says of its decoder, at its top or within."""
    for name in _INNER:
        inner = config.get(name)
        if isinstance(inner, Mapping):
            return {**config, **inner}
    return config


def context_tokens(config: Mapping[str, Any]) -> int | None:
    """How many tokens the model is meant for, as vLLM derives it; None where it isn't said."""
    text = decoder(config)
    tokens = _size(text, "max_position_embeddings")
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if not tokens or not isinstance(scaling, Mapping):
        return tokens or None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor", 1.0)
    if str(kind) in _UNSCALED or not isinstance(factor, int | float):
        return tokens
    return int((_size(scaling, "original_max_position_embeddings") or tokens) * factor)


def _size(text: Mapping[str, Any], *names: str) -> int:
    """The first of these that is a whole number above 0; 0: none is."""
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _starts(text: Mapping[str, Any], *beginnings: str) -> bool:
    """Whether the model's type begins so."""
    return str(text.get("model_type", "")).startswith(beginnings)


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    return _size(text, "num_key_value_heads", "num_kv_heads") or heads


def _head_dim(text: Mapping[str, Any], heads: int, hidden: int) -> int:
    return _size(text, "head_dim") or hidden // heads


def _kv(text: Mapping[str, Any], layers: int, heads: int, hidden: int) -> Iterator[KvLayers]:
    latent = _size(text, "kv_lora_rank")
    if latent:
        # Sparse attention keeps a key of its own for choosing tokens, a byte an element.
        index = _size(text, "index_head_dim") // _BYTES
        elements = latent + _size(text, "qk_rope_head_dim") + index
        yield KvLayers(layers=layers, heads=0, elements=elements)
        return
    full, windowed, certain = _attention_layers(text, layers)
    kv_heads, head_dim = _kv_heads(text, heads), _head_dim(text, heads, hidden)
    if full:
        dim = _size(text, "global_head_dim") or head_dim
        whole = _size(text, "num_global_key_value_heads") or kv_heads
        yield KvLayers(layers=full, heads=whole, elements=2 * dim)
    if windowed:
        yield KvLayers(
            layers=windowed,
            heads=kv_heads,
            elements=2 * head_dim,
            window_tokens=_window(text) or None,
            certain=certain,
        )


def _window(text: Mapping[str, Any]) -> int:
    """How many tokens back layers with a window see, 0 where none is said."""
    return _size(text, "sliding_window", "attention_chunk_size")


def _attention_layers(text: Mapping[str, Any], layers: int) -> tuple[int, int, bool]:
    """Layers that see everything, those with a window, and whether it is certain which are which.

    The others keep a state of fixed size, or use the KV of another layer.
    """
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, Sequence) and len(kinds) == layers:
        own = [str(kind) for kind in kinds[: layers - _size(text, "num_kv_shared_layers")]]
        return sum(k in _FULL for k in own), sum(k in _WINDOWED for k in own), True
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("*"), 0, True
    every = _size(text, "full_attention_interval", "attn_layer_period")
    if every:
        return max(1, layers // every), 0, True
    if _window(text) and text.get("use_sliding_window", True):
        return 0, layers, False
    return layers, 0, True


class _Parameters:
    """Numbers of a model's weights. linear: attention and dense MLPs. attention: its part of them.
    experts: of all experts together. table: embeddings and output layer.
    """

    def __init__(
        self, text: Mapping[str, Any], layers: int, heads: int, hidden: int, vocabulary: int
    ) -> None:
        self.mlp = _size(text, "intermediate_size_mlp", "intermediate_size")
        count = _size(text, "n_routed_experts", "num_experts", "num_local_experts")
        self.expert = _size(text, "moe_intermediate_size", "intermediate_size") if count else 0
        sparse = _expert_layers(text, layers) if count else 0
        gated = _starts(text, "gemma") or str(text.get("hidden_act")) not in _UNGATED
        matrices = 3 if gated else 2
        shared = _size(text, "shared_expert_intermediate_size")
        shared = shared or _size(text, "n_shared_experts") * self.expert
        shared = shared or (self.expert if _starts(text, "llama4") else 0)
        dense = (layers - sparse) * self.mlp + sparse * shared
        self.attention = layers * _attention(text, heads, hidden)
        self.linear = self.attention + matrices * hidden * dense
        self.experts = sparse * count * matrices * hidden * self.expert
        tied = text.get("tie_word_embeddings", _starts(text, "gemma", "cohere"))
        self.table = vocabulary * hidden * (1 if tied else 2)


def _expert_layers(text: Mapping[str, Any], layers: int) -> int:
    """How many layers have experts."""
    step = _size(text, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    only_dense = text.get("mlp_only_layers")
    without = len(only_dense) if isinstance(only_dense, Sequence) else 0
    return max(0, (layers - _size(text, "first_k_dense_replace")) // step - without)


def _attention(text: Mapping[str, Any], heads: int, hidden: int) -> int:
    """Weights of one layer's attention."""
    latent, rope = _size(text, "kv_lora_rank"), _size(text, "qk_rope_head_dim")
    if latent:
        plain, value = _size(text, "qk_nope_head_dim"), _size(text, "v_head_dim")
        narrow = _size(text, "q_lora_rank")
        query = heads * (plain + rope)
        queries = narrow * (hidden + query) if narrow else hidden * query
        keys = hidden * (latent + rope) + latent * heads * (plain + value)
        return queries + keys + heads * value * hidden
    head_dim = _head_dim(text, heads, hidden)
    return 2 * hidden * head_dim * (heads + _kv_heads(text, heads))


def _stored(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any]:
    """How its files are quantised; empty where they aren't."""
    stored = config.get("quantization_config") or text.get("quantization_config")
    return stored if isinstance(stored, Mapping) else {}


def _weights_bytes(
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    parameters: _Parameters,
    files_bytes: int | None,
    quantized: str | None,
) -> int | None:
    stored = _stored(config, text)
    if files_bytes and (stored or not quantized):
        # vLLM holds in two bytes what a file has in four.
        halved = text.get("dtype", text.get("torch_dtype")) == "float32"
        return files_bytes // 2 if halved and not stored else files_bytes
    bits = quantization.bits(stored, quantized)
    if bits is None or not parameters.mlp + parameters.expert:
        return None
    linear = parameters.linear
    plain = parameters.attention if bits.without_attention else 0
    quantised_bits = (linear - plain) * bits.linear + parameters.experts * bits.experts
    return round(quantised_bits / 8) + _BYTES * (plain + parameters.table)
