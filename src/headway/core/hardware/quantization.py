"""How many bits a quantised model's weights take, scales counted in."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_PLAIN: Final = 16.0
_FP8: Final = 8.0
_INT4: Final = 4.25
_NVFP4: Final = 4.5
_MXFP4: Final = 4.25
_BY_NAME: Final[Mapping[str, float]] = {
    "fp8": _FP8,
    "fbgemm_fp8": _FP8,
    "fp8_per_tensor": _FP8,
    "fp8_per_block": _FP8,
    "ptpc_fp8": _FP8,
    "experts_int8": _FP8,
    "int8": _FP8,
    "awq": _INT4,
    "awq_marlin": _INT4,
    "bitsandbytes": _INT4,
}
"""Methods that quantise every linear layer alike."""
_SCALES: Final = 0.25
"""A scale of 16 bits for 128 weights, and their zero point."""
_ATTENTION: Final = ("self_attn", "attention", "q_proj", "qkv")


class WeightBits(NamedTuple):
    """Of a weight. without_attention: attention's are left at 16 bits."""

    linear: float
    experts: float
    without_attention: bool = False


def bits(stored: Mapping[str, Any], asked: str | None) -> WeightBits | None:
    """Bits of the weights of linear layers and experts; None for a method that isn't known.

    stored: config.json's quantization_config, empty without one. asked: what vLLM quantises to
    while loading.
    """
    if not stored:
        found = _BY_NAME.get(asked, 0.0) if asked else _PLAIN
        return WeightBits(found, found) if found else None
    method = str(stored.get("quant_method", ""))
    if method == "mxfp4":
        return WeightBits(_PLAIN, _MXFP4)
    found = _stored(method, stored)
    if not found:
        return None
    left = stored.get("modules_to_not_convert") or stored.get("ignore") or ()
    return WeightBits(found, found, _names_attention(left))


def _stored(method: str, stored: Mapping[str, Any]) -> float:
    """Bits by a method that quantises linear layers alike; 0 where that isn't known."""
    if method == "compressed-tensors":
        groups = stored.get("config_groups")
        each = groups.values() if isinstance(groups, Mapping) else ()
        return max((_group(group) for group in each), default=0.0)
    if method.startswith("modelopt"):
        return _NVFP4 if "FP4" in str(stored.get("quant_algo", method)).upper() else _FP8
    if method == "bitsandbytes" and stored.get("load_in_8bit"):
        return _FP8
    width = stored.get("bits")
    if method.startswith(("gptq", "awq", "auto-round")) and isinstance(width, int):
        return width + _SCALES
    return _BY_NAME.get(method, 0.0)


def _group(group: object) -> float:
    """Of one of compressed-tensors' groups; one whose weights aren't quantised has all 16."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return _PLAIN
    width = weights.get("num_bits")
    if not isinstance(width, int):
        return 0.0
    return width + (_SCALES if weights.get("group_size") else 0.0)


def _names_attention(modules: object) -> bool:
    if not isinstance(modules, list | tuple):
        return False
    return any(part in str(module) for module in modules for part in _ATTENTION)
