"""Well-known models by name, as their public dimensions: for engines that compute nothing.

A directory of one has its configuration and a tokenizer, and no weights. The tokenizer is a small
one of its own, made of the text that Python has about itself, so that nothing has to be fetched:
text goes in and comes out as with any other, in about half as many tokens again as the model's own
would take. Whoever needs prompts of an exact length sends token ids.
"""

import importlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from headway.models import cache, named

DEFAULT: Final = "llama-3.1-8b"
_OWN: Final = "name a directory with config.json and weights, or a hub's model"
WORDS: Final = 8192
"""Tokens of the tokenizer; ids above them are the model's all the same."""
_RECIPE: Final = "known-1"
_NEED_BYTES: Final = 5_000_000
_BEGIN, _END = "<|begin|>", "<|end|>"
_TEMPLATE: Final = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_COMMON: Final[Mapping[str, Any]] = {
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_LLAMA: Final[Mapping[str, Any]] = {
    **_COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_QWEN: Final[Mapping[str, Any]] = {
    **_COMMON,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
}
CONFIG_BY_NAME: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama-3.1-8b": {
        **_LLAMA,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_attention_heads": 32,
    },
    "llama-3.1-70b": {
        **_LLAMA,
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_attention_heads": 64,
    },
    "qwen3-32b": {
        **_QWEN,
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_attention_heads": 64,
    },
    "qwen3-30b-a3b": {
        **_QWEN,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
}
"""config.json of each; dimensions as their makers publish them."""


def well_known(model: str) -> str | None:
    """The name in `CONFIG_BY_NAME` that is meant; None: none is, or there is such a directory."""
    name = model.lower()
    return name if name in CONFIG_BY_NAME and not Path(model).exists() else None


def config(model: str | None) -> Mapping[str, Any] | None:
    """The configuration of a well-known model, of the default one for None; None: it isn't one."""
    name = well_known(DEFAULT if model is None else model)
    return None if name is None else CONFIG_BY_NAME[name]


def problem(
    model: str, environ: Mapping[str, str], flags: Collection[str] = (), *, emulated: bool
) -> str | None:
    """As `named.problem`, of a model that may be well known; emulated ones need no weights."""
    if not emulated:
        missing = f"{model} has no weights here, it can be emulated only; {_OWN}"
        return missing if well_known(model) else named.problem(model, environ, flags)
    if well_known(model):
        return None
    return named.problem(model, environ, (*flags, "--load-format"))


def directory(model: str) -> str:
    """Where vLLM finds a model: a well-known one's directory, else the name as it is.

    Raises ModelError.
    """
    name = well_known(model)
    return model if name is None else str(ensure(name))


def ensure(name: str, root: Path | None = None) -> Path:
    """The directory of a model of `CONFIG_BY_NAME`, made first where need be, without a network.

    root: where models are cached, by default `cache.cache_dir()`. Raises ModelError when it can't
    be made.
    """
    config = CONFIG_BY_NAME[name]
    recipe = f"{_RECIPE} {json.dumps(config, sort_keys=True)}"

    def build(directory: Path) -> None:
        (directory / "config.json").write_text(json.dumps(config, indent=1))
        write_tokenizer(directory)

    return cache.prepare(
        f"known-{name}", recipe, build, need_bytes=_NEED_BYTES, root=root or cache.cache_dir()
    )


def write_tokenizer(directory: Path) -> None:
    """Write the tokenizer's files. Raises ModelError without the package `tokenizers`."""
    try:
        library = importlib.import_module("tokenizers")
    except ImportError as error:
        raise cache.ModelError(
            "a model by name needs the package tokenizers, which comes with vLLM; install it here"
        ) from error
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    level = library.pre_tokenizers.ByteLevel
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = level(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=[_BEGIN, _END],
        initial_alphabet=sorted(level.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _BEGIN,
        "eos_token": _END,
        "chat_template": _TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(about, indent=1))
