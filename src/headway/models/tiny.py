"""A random two-layer Llama with the bundled model's tokenizer: starts fast, for tests."""

import json
import random
import shutil
import statistics
import struct
from pathlib import Path
from typing import Final

from headway.models import bundled, cache

_HIDDEN: Final = 64
_FEED_FORWARD: Final = 128
_HEADS: Final = 2
_KV_HEADS: Final = 1
_LAYERS: Final = 2
_VOCABULARY: Final = 49152
_RECIPE: Final = "tiny-llama-1"
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def ensure(root: Path | None = None) -> Path:
    """The model's directory, built first where need be; also prepares the bundled model.

    Weights are float32 and the same everywhere. Serve it with `--dtype float32`: in 16 bits two
    tokens often tie, and greedy answers then depend on how a prompt was cut into chunks.
    """
    root = root or cache.cache_dir()
    tokenizer = bundled.ensure(root)

    def build(directory: Path) -> None:
        for name in _TOKENIZER_FILES:
            shutil.copyfile(tokenizer / name, directory / name)
        (directory / "config.json").write_text(json.dumps(_config(), indent=1))
        _write_weights(directory / "model.safetensors")

    return cache.prepare("tiny-llama", _RECIPE, build, need_bytes=50_000_000, root=root)


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": _VOCABULARY,
        "hidden_size": _HIDDEN,
        "intermediate_size": _FEED_FORWARD,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HIDDEN // _HEADS,
        "max_position_embeddings": bundled.CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    head = _HIDDEN // _HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (_VOCABULARY, _HIDDEN)}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (_HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (_HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (_HEADS * head, _HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (_KV_HEADS * head, _HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (_KV_HEADS * head, _HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (_HIDDEN, _HEADS * head),
            f"{prefix}.mlp.gate_proj.weight": (_FEED_FORWARD, _HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (_FEED_FORWARD, _HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (_HIDDEN, _FEED_FORWARD),
        }
    return shapes | {"model.norm.weight": (_HIDDEN,), "lm_head.weight": (_VOCABULARY, _HIDDEN)}


def _write_weights(path: Path) -> None:
    """A safetensors file: header length, JSON header, then the tensors one after another."""
    rng = random.Random(0)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs = []
    offset = 0
    for name, shape in _shapes().items():
        # Rows that keep the size of what passes through: 1 for the embeddings.
        spread = 1.0 if name.startswith(("model.embed", "lm_head")) else shape[-1] ** -0.5
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        one = struct.pack("<f", 1.0)
        blob = one * count if "norm" in name else _normal(rng, count, spread)
        ends = [offset, offset + len(blob)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": ends}
        offset = ends[1]
        blobs.append(blob)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(blobs))


def _normal(rng: random.Random, count: int, spread: float) -> bytes:
    """`count` float32 values from 256 quantiles of a normal distribution, little-endian.

    Each value is picked by one random byte, and `bytes.translate` looks up its four bytes for all
    values at once: as fast as numpy, without it.
    """
    distribution = statistics.NormalDist(0.0, spread)
    table = [struct.pack("<f", distribution.inv_cdf((i + 0.5) / 256)) for i in range(256)]
    picks = rng.randbytes(count)
    values = bytearray(4 * count)
    for byte in range(4):
        values[byte::4] = picks.translate(bytes(entry[byte] for entry in table))
    return bytes(values)
