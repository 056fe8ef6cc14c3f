"""Directories that are built once, whole or not at all, and checked before each use."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from headway.core.errors import HeadwayError
from headway.home import home

MANIFEST: Final = "headway-manifest.json"


class ModelError(HeadwayError):
    """A model that can't be prepared; the message says what to do."""


def cache_dir() -> Path:
    """Where prepared models live: $XDG_CACHE_HOME/headway/models, by default under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or home() / ".cache"
    return Path(base) / "headway" / "models"


def prepare(
    name: str, recipe: str, build: Callable[[Path], None], *, need_bytes: int, root: Path
) -> Path:
    """The directory `root/name`, built by `build` unless it is there and intact.

    recipe: identifies what is built; a directory built by another recipe is replaced.
    build: fills the empty directory it is given; whatever it raises leaves no trace.
    need_bytes: free disk space `build` needs.

    Several processes may call this at once: one builds, the others wait.
    Raises ModelError when the disk can't take it.
    """
    target = root / name
    if intact(target, recipe):
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f".{name}.lock", name):
            if not intact(target, recipe):
                _check_space(root, need_bytes)
                _build(target, recipe, build)
    except OSError as error:
        raise ModelError(
            f"cannot prepare {name} in {root}: {error.strerror or error}; "
            "set XDG_CACHE_HOME to a writable directory with free space"
        ) from error
    return target


def intact(target: Path, recipe: str) -> bool:
    """Whether `target` was built by `recipe` and holds what was built.

    Files whose size and modification time are unchanged are taken as they are;
    others are hashed.
    """
    try:
        manifest = json.loads((target / MANIFEST).read_text())
        if manifest["recipe"] != recipe:
            return False
        return all(_unchanged(target / name, entry) for name, entry in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _unchanged(path: Path, entry: dict[str, Any]) -> bool:
    found = path.stat()
    if found.st_size != entry["size"]:
        return False
    return bool(found.st_mtime_ns == entry["mtime_ns"] or sha256(path) == entry["sha256"])


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build(target: Path, recipe: str, build: Callable[[Path], None]) -> None:
    # Whoever holds the lock is alone here: what an interrupted build left is garbage.
    for stale in target.parent.glob(f".{target.name}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        build(partial)
        partial.chmod(0o755)
        _write_manifest(partial, recipe)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_manifest(directory: Path, recipe: str) -> None:
    files = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        found = path.stat()
        files[str(path.relative_to(directory))] = {
            "size": found.st_size,
            "mtime_ns": found.st_mtime_ns,
            "sha256": sha256(path),
        }
    text = json.dumps({"recipe": recipe, "files": files}, indent=1)
    (directory / MANIFEST).write_text(text + "\n")


def _check_space(root: Path, need_bytes: int) -> None:
    free = shutil.disk_usage(root).free
    if free < need_bytes:
        raise ModelError(
            f"{root} has {free / 1e9:.1f} GB free and the model needs {need_bytes / 1e9:.1f}; "
            "free some space or set XDG_CACHE_HOME to another disk"
        )


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    """Hold the lock file; it goes with the process, whatever ends it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another process is preparing {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    """Tell the user about progress, on standard error."""
    sys.stderr.write(f"headway: {line}\n")
    sys.stderr.flush()
