"""`python -m headway.models.convert GGUF DIRECTORY`: a GGUF model as safetensors and tokenizer."""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Final

# Greedy unless a request says otherwise: at 4 bits the small model's best tokens are close to one
# another, and sampled answers ramble.
_SAMPLING: Final = {"do_sample": False, "temperature": 0.0}

# What llama.cpp calls the `smollm` pre-tokenizer: digits stand alone, then bytes. The conversion
# leaves the digits rule out.
_PRE_TOKENIZER: Final = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}


def convert(gguf: Path, directory: Path) -> None:
    """Write config, bfloat16 weights, tokenizer and chat template of `gguf` into `directory`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch  # noqa: PLC0415 -- heavy, and absent where only the core is installed
    import transformers  # noqa: PLC0415 -- as above

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    if not tokenizer.chat_template:
        raise SystemExit(f"{gguf.name} carries no chat template")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(str(directory))
    tokenizer.save_pretrained(str(directory))
    _amend(directory / "tokenizer.json", {"pre_tokenizer": _PRE_TOKENIZER})
    _amend(directory / "generation_config.json", _SAMPLING)


def _amend(path: Path, values: dict[str, Any]) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
