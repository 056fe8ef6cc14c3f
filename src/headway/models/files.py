"""What a model's files on this machine say: its configuration, and the size of its weights."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from headway.models.named import hub_cache

CONFIG: Final = "config.json"
INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_MAIN: Final = "main"
_MISTRALS: Final = "consolidated"
"""Beginning of the names of files that have the same weights once more."""


class ModelFiles(NamedTuple):
    """config: of config.json. weights_bytes: of all weights' files; None where not all are there
    and no index tells it.
    """

    config: Mapping[str, Any]
    weights_bytes: int | None


def model_files(
    model: str,
    environ: Mapping[str, str],
    *,
    revision: str | None = None,
    cache: str | None = None,
) -> ModelFiles | None:
    """What is here of a model; None: nothing that can be read.

    model: a directory, or a hub's name. environ: tells where the hub's cache is. revision: of a hub
    model; None is its main branch. cache: the hub's cache, where it is named (--download-dir).
    """
    if os.path.isdir(model):  # noqa: PTH112  says no to whatever can't be looked at
        return _in(Path(model), whole=True)
    folder = _snapshot(Path(cache) if cache else hub_cache(environ), model, revision or _MAIN)
    return _in(folder, whole=False) if folder else None


def _snapshot(cache: Path, model: str, revision: str) -> Path | None:
    """Where the hub's cache has a model; as huggingface_hub lays it out."""
    home = cache / f"models--{model.replace('/', '--')}"
    try:
        commit = (home / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        commit = revision
    folder = home / "snapshots" / commit
    return folder if folder.is_dir() else None


def _in(folder: Path, *, whole: bool) -> ModelFiles | None:
    """whole: all weights are there, not only those fetched so far."""
    config = _object(folder / CONFIG)
    if config is None:
        return None
    for name in INDEXES:
        metadata = (_object(folder / name) or {}).get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, dict) else None
        if isinstance(size, int) and size > 0:
            return ModelFiles(config, size)
    return ModelFiles(config, _sum(folder) if whole else None)


def _sum(folder: Path) -> int | None:
    """Of the weights in a folder, by the first format there."""
    for pattern in ("*.safetensors", "*.bin"):
        try:
            sizes = [
                each.stat().st_size
                for each in folder.glob(pattern)
                if not each.name.startswith(_MISTRALS)
            ]
        except OSError:
            return None
        if sizes:
            return sum(sizes)
    return None


def _object(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
