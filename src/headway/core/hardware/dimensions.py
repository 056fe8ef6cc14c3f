"""The dimensions of a model as its config.json has them: the one place that reads them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_INNER: Final = ("text_config", "llm_config", "language_config")
"""Where models that read images too keep what is said of their decoder."""
_FULL: Final = frozenset({"full_attention", "attention", "global_attention", "hybrid"})
_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention", "local_attention"})
_UNGATED: Final = frozenset({"gelu_new", "gelu", "gelu_fast", "relu", "relu2"})
"""Activations of MLPs with two matrices; those with a gate have three."""
_UNSCALED: Final = frozenset({"default", "su", "longrope", "llama3", "mrope", "proportional"})
"""Kinds of rotary scaling that max_position_embeddings already counts in."""


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
    tokens = size(text, "max_position_embeddings")
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if not tokens or not isinstance(scaling, Mapping):
        return tokens or None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor", 1.0)
    if str(kind) in _UNSCALED or not isinstance(factor, int | float):
        return tokens
    return int((size(scaling, "original_max_position_embeddings") or tokens) * factor)


def size(text: Mapping[str, Any], *names: str) -> int:
    """The first of these that is a whole number above 0; 0: none is."""
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def starts(text: Mapping[str, Any], *beginnings: str) -> bool:
    """Whether the model's type begins so."""
    return str(text.get("model_type", "")).startswith(beginnings)


def window_tokens(text: Mapping[str, Any]) -> int:
    """How many tokens back layers with a window see, 0 where none is said."""
    return size(text, "sliding_window", "attention_chunk_size")


def attention_layers(text: Mapping[str, Any], layers: int) -> tuple[int, int, bool]:
    """Layers that see everything, those with a window, and whether it is certain which are which.

    The others keep a state of fixed size, or use the KV of another layer.
    """
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, Sequence) and len(kinds) == layers:
        own = [str(kind) for kind in kinds[: layers - size(text, "num_kv_shared_layers")]]
        return sum(k in _FULL for k in own), sum(k in _WINDOWED for k in own), True
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("*"), 0, True
    every = size(text, "full_attention_interval", "attn_layer_period")
    if every:
        return max(1, layers // every), 0, True
    if window_tokens(text) and text.get("use_sliding_window", True):
        return 0, layers, False
    return layers, 0, True


class Dimensions:
    """A decoder's sizes, numbers of elements; 0 where the configuration doesn't tell.

    text: what is said of the decoder. stored: how its files are quantised; empty where they aren't.
    mlp, expert: widths of a dense MLP and of one expert. shared: of what every token passes beside
    its experts. linear, attention, experts, table: numbers of weights, of attention and dense MLPs,
    of attention's part of them, of all experts, of embeddings and output layer.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = self.text = decoder(config)
        stored = text.get("quantization_config")
        self.stored: Mapping[str, Any] = stored if isinstance(stored, Mapping) else {}
        self.layers = size(text, "num_hidden_layers")
        self.heads = heads = size(text, "num_attention_heads")
        self.hidden = hidden = size(text, "hidden_size")
        self.vocabulary = size(text, "vocab_size")
        self.told = bool(self.layers and heads and hidden and self.vocabulary)
        """Whether the configuration tells the sizes that everything follows from."""
        self.latent = size(text, "kv_lora_rank")
        """Width of the one vector that latent attention keeps instead of keys and values."""
        self.kv_heads = size(text, "num_key_value_heads", "num_kv_heads") or heads
        self.head_dim = size(text, "head_dim") or hidden // (heads or 1)
        self.mlp = size(text, "intermediate_size_mlp", "intermediate_size")
        self.expert_count = size(text, "n_routed_experts", "num_experts", "num_local_experts")
        self.experts_per_token = size(
            text, "num_experts_per_tok", "experts_per_token", "top_k_experts"
        )
        self.expert = (
            size(text, "moe_intermediate_size", "intermediate_size") if self.expert_count else 0
        )
        shared = size(text, "shared_expert_intermediate_size")
        shared = shared or size(text, "n_shared_experts") * self.expert
        self.shared = shared or (self.expert if starts(text, "llama4") else 0)
        self.expert_layers = _expert_layers(text, self.layers) if self.expert_count else 0
        self._count()

    def _count(self) -> None:
        text, hidden = self.text, self.hidden
        gated = starts(text, "gemma") or str(text.get("hidden_act")) not in _UNGATED
        matrices = 3 if gated else 2
        dense = (self.layers - self.expert_layers) * self.mlp + self.expert_layers * self.shared
        self.attention = self.layers * self._attention()
        self.linear = self.attention + matrices * hidden * dense
        self.experts = self.expert_layers * self.expert_count * matrices * hidden * self.expert
        tied = text.get("tie_word_embeddings", starts(text, "gemma", "cohere"))
        self.table = self.vocabulary * hidden * (1 if tied else 2)

    def _attention(self) -> int:
        """Weights of one layer's attention."""
        text, heads, hidden, latent = self.text, self.heads, self.hidden, self.latent
        if not latent:
            return 2 * hidden * self.head_dim * (heads + self.kv_heads)
        plain, value = size(text, "qk_nope_head_dim"), size(text, "v_head_dim")
        narrow, rope = size(text, "q_lora_rank"), size(text, "qk_rope_head_dim")
        query = heads * (plain + rope)
        queries = narrow * (hidden + query) if narrow else hidden * query
        keys = hidden * (latent + rope) + latent * heads * (plain + value)
        return queries + keys + heads * value * hidden


def _expert_layers(text: Mapping[str, Any], layers: int) -> int:
    """How many layers have experts."""
    step = size(text, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    only_dense = text.get("mlp_only_layers")
    without = len(only_dense) if isinstance(only_dense, Sequence) else 0
    return max(0, (layers - size(text, "first_k_dense_replace")) // step - without)
