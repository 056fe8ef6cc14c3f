"""A model that a user names: what is wrong with it, as far as that can be known without a network.

vLLM takes a directory, an address of object storage, or a name on a hub. Only the hub knows its
names; what is on this machine is looked at.
"""

import difflib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from headway.home import expanded

_CONFIGS: Final = ("config.json", "params.json")
"""Of Hugging Face's format and of Mistral's."""
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt")
_INDEX: Final = "model.safetensors.index.json"
_HUB_NAME: Final = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?::[\w.-]+)?", re.ASCII)
_TRUE: Final = frozenset({"1", "on", "yes", "true"})
_GIT_LFS: Final = b"version https://git-lfs"
_LENGTH_BYTES: Final = 8
"""Of a safetensors file's start, which tells how long its header is."""
_KINDS: Final = (
    "a model is a directory with config.json and weights, or a name on a hub such as Qwen/Qwen3-8B"
)


def problem(model: str, environ: Mapping[str, str], flags: Collection[str] = ()) -> str | None:
    """What is wrong with `model` and what would be right; None for what may be right.

    environ: of the engine: where the hub's cache is, and whether the hub may be asked.
    flags: names of the vLLM flags it gets: with some, weights or cache are elsewhere.
    """
    # Unlike pathlib's, these two say no to whatever can't be looked at.
    if os.path.isdir(model):  # noqa: PTH112
        return _of_directory(Path(model), weights="--load-format" not in flags)
    if "://" in model or model.endswith(".gguf"):
        return None
    if os.path.exists(model):  # noqa: PTH110
        return f"{model} is a file; {_KINDS}"
    return _of_absent(model) or _of_cache(model, environ, flags)


def is_hub_name(model: str) -> bool:
    """Whether it is a hub's name and nothing on this machine."""
    if os.path.exists(model) or model.endswith(".gguf"):  # noqa: PTH110  as above
        return False
    return not model.startswith((".", "~")) and bool(_HUB_NAME.fullmatch(model))


def _of_absent(model: str) -> str | None:
    """Of what isn't there: None if it may be a hub's name."""
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        return f"there is no directory {model}; {_instead(model)}{_KINDS}"
    if not _HUB_NAME.fullmatch(model):
        return f"{model!r} is neither a directory here nor a name that a hub could have; {_KINDS}"
    return None


def _instead(model: str) -> str:
    """What may have been meant by a path at which there is nothing."""
    if model.startswith("~"):
        whole = os.path.expanduser(model)  # noqa: PTH111  Path's raises for a user that isn't there
        return f"~ isn't expanded here: write {whole if whole != model else 'the path in full'}; "
    path = Path(model)
    near = _near(path.name, _directories(path.parent))
    return f"did you mean {path.with_name(near)}? " if near else ""


def _near(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(names), 1)), None)


def _directories(parent: Path) -> list[str]:
    try:
        return [each.name for each in os.scandir(parent) if each.is_dir()]
    except (OSError, ValueError):  # a name with a null byte is a ValueError
        return []


def _of_directory(directory: Path, *, weights: bool) -> str | None:
    try:
        return _without_config(directory) or (_without_weights(directory) if weights else None)
    except OSError as error:
        return f"{error.filename or directory} can't be read: {error.strerror}"


def _without_config(directory: Path) -> str | None:
    found = [directory / name for name in _CONFIGS if (directory / name).exists()]
    if not found:
        # Two levels below are those of the hub's cache: snapshots/COMMIT/config.json.
        below = (each for part in ("*", "*/*") for each in directory.glob(f"{part}/{_CONFIGS[0]}"))
        nearest = next(below, None)
        instead = f"{nearest.parent} has one: name that" if nearest else _KINDS
        return f"{directory} has no config.json; {instead}"
    try:
        config = json.loads(found[0].read_text())
    except ValueError as error:
        return f"{found[0]} is not JSON ({error}); fetch the model again"
    if not isinstance(config, dict):
        return f"{found[0]} is not a JSON object; fetch the model again"
    return None


def _without_weights(directory: Path) -> str | None:
    files = [each for pattern in _WEIGHTS for each in directory.glob(pattern)]
    missing = sorted(_indexed(directory) - {each.name for each in files})
    if missing:
        said = f"of {directory}'s weights {len(missing)} files are missing, {missing[0]} among them"
        return f"{said}; fetch the model again"
    if not files:
        return f"{directory} has no weights ({', '.join(_WEIGHTS)}); fetch the model again"
    return next(filter(None, map(_broken, sorted(files))), None)


def _indexed(directory: Path) -> set[str]:
    """Names of the weights' files, where an index tells them."""
    try:
        return set(json.loads((directory / _INDEX).read_text())["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()


def _broken(weights: Path) -> str | None:
    with weights.open("rb") as file:
        start = file.read(len(_GIT_LFS))
        if start == _GIT_LFS:
            return f"{weights} only points to the weights; fetch them with git lfs pull"
        if weights.suffix != ".safetensors":
            return None
        size = os.fstat(file.fileno()).st_size
        header_bytes = int.from_bytes(start[:_LENGTH_BYTES], "little")
        file.seek(_LENGTH_BYTES)
        header = file.read(header_bytes) if _LENGTH_BYTES + header_bytes <= size else b""
    tensors_bytes = _tensors_bytes(header)
    if tensors_bytes is not None and _LENGTH_BYTES + header_bytes + tensors_bytes == size:
        return None
    return f"{weights} isn't complete; fetch it again"


def _tensors_bytes(header: bytes) -> int | None:
    """How much follows a safetensors file's header; None where that isn't one."""
    try:
        entries: dict[str, dict[str, list[int]]] = json.loads(header)
        ends = [e["data_offsets"][1] for name, e in entries.items() if name != "__metadata__"]
        return max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def offline(environ: Mapping[str, str]) -> bool:
    """Whether huggingface_hub may not ask; another hub's cache isn't known here."""
    if environ.get("VLLM_USE_MODELSCOPE", "").lower() in _TRUE:
        return False
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(environ.get(name, "").lower() in _TRUE for name in names)


def _of_cache(model: str, environ: Mapping[str, str], flags: Collection[str]) -> str | None:
    """Of a hub's name: it is wrong only if the hub may not be asked and the cache hasn't got it."""
    if "--download-dir" in flags or not offline(environ):
        return None
    cache = hub_cache(environ)
    cached = set(_cached(cache))
    name = model.partition(":")[0]
    if name in cached:
        return None
    near = _near(name, cached)
    instead = f"did you mean {near}? " if near else ""
    said = f"{model} isn't in the hub's cache {cache}, and HF_HUB_OFFLINE lets nothing be fetched"
    return f"{said}; {instead}fetch it first (hf download {name}), or name a directory"


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it has fetched."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return expanded(named)
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(environ.get("HF_HOME") or f"{caches}/huggingface") / "hub"


def _cached(cache: Path) -> Iterator[str]:
    """The names of the models there."""
    for name in _CONFIGS:
        for config in cache.glob(f"models--*/snapshots/*/{name}"):
            yield config.parts[-4].removeprefix("models--").replace("--", "/")
