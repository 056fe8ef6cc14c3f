"""What a model computes for a token, from the dimensions in its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from headway.core.errors import SettingError
from headway.core.hardware import quantization
from headway.core.hardware.dimensions import Dimensions, attention_layers

WeightDtype: TypeAlias = Literal["bfloat16", "fp8"]
BYTES_BY_DTYPE: Final = {"bfloat16": 2, "fp8": 1}
FP8_BITS: Final = 8.0
"""Weights of four bits are timed as if they had eight: too slow where few tokens are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of a transformer; sizes are numbers of elements.

    hidden: width. mlp: width of a dense MLP, or of one expert. heads, kv_heads: of attention.
    experts, experts_per_token: 0 for a dense model. shared_mlp: width of what every token passes
    beside its experts. weight_dtype: of the linear layers; embeddings, output layer and activations
    are bfloat16. kv_dtype: of the KV cache.
    """

    name: str
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    experts: int = 0
    experts_per_token: int = 0
    shared_mlp: int = 0
    weight_dtype: WeightDtype = "bfloat16"
    kv_dtype: WeightDtype = "bfloat16"

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "mlp", "heads", "kv_heads", "head_dim", "vocabulary")
        for size in sizes:
            if getattr(self, size) < 1:
                raise SettingError(size, f"is {getattr(self, size)}; use 1 or more")
        if self.heads % self.kv_heads:
            raise SettingError("kv_heads", f"is {self.kv_heads}; it has to divide {self.heads}")
        if not 0 <= self.experts_per_token <= self.experts:
            raise SettingError(
                "experts_per_token", f"is {self.experts_per_token}; use 0 to experts"
            )

    def on(self, gpus: int) -> "Shard":
        """What one GPU of a tensor parallel engine has of it. Raises SettingError."""
        if gpus < 1 or self.heads % gpus:
            raise SettingError(
                "tensor_parallel_size", f"is {gpus}; it has to divide the {self.heads} heads"
            )
        kv_heads = max(1, self.kv_heads // gpus)
        heads = self.heads // gpus
        return Shard(
            heads=heads,
            kv_heads=kv_heads,
            qkv=(heads + 2 * kv_heads) * self.head_dim,
            attention=heads * self.head_dim,
            mlp=-(-self.mlp // gpus),
            shared_mlp=-(-self.shared_mlp // gpus),
            vocabulary=-(-self.vocabulary // gpus),
        )

    def kv_bytes_per_token(self, gpus: int = 1) -> int:
        """KV cache that a token takes on one GPU of an engine."""
        each = self.on(gpus).kv_heads * self.head_dim * BYTES_BY_DTYPE[self.kv_dtype]
        return 2 * self.layers * each


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Widths of one GPU's part of a model, elements."""

    heads: int
    kv_heads: int
    qkv: int
    attention: int
    mlp: int
    shared_mlp: int
    vocabulary: int


def model_shape(
    config: Mapping[str, Any],
    *,
    name: str = "model",
    quantized: str | None = None,
    kv_dtype: WeightDtype = "bfloat16",
) -> ModelShape:
    """What a model computes, from its config.json.

    quantized: what vLLM is told to quantise to while loading (--quantization). Raises SettingError
    for what isn't a decoder with full attention in every layer.
    """
    of = Dimensions(config)
    if not of.told:
        raise SettingError("config.json", "doesn't tell layers, heads, width and vocabulary")
    if of.latent or attention_layers(of.text, of.layers) != (of.layers, 0, True):
        kind = of.text.get("model_type", "this model")
        raise SettingError(
            "config.json",
            f"{kind} has layers with latent, windowed or linear attention, whose time isn't known; "
            "use a model with full attention in all layers",
        )
    bits = quantization.bits(of.stored, quantized)
    if bits is None:
        raise SettingError("quantization", "isn't known; use fp8, or a model in bfloat16")
    if 0 < of.expert_layers < of.layers:
        raise SettingError("config.json", "only some layers have experts; use another model")
    narrow = min(bits.linear, bits.experts) if of.expert_count else bits.linear
    return ModelShape(
        name=name,
        layers=of.layers,
        hidden=of.hidden,
        mlp=of.expert or of.mlp,
        heads=of.heads,
        kv_heads=of.kv_heads,
        head_dim=of.head_dim,
        vocabulary=of.vocabulary,
        experts=of.expert_count,
        experts_per_token=of.experts_per_token,
        shared_mlp=of.shared,
        weight_dtype="fp8" if narrow <= FP8_BITS else "bfloat16",
        kv_dtype=kv_dtype,
    )
