"""What can be asked of a hub beforehand: a model's configuration, which vLLM needs anyway."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final

from headway.models.files import CONFIG, INDEXES, ModelFiles, model_files
from headway.models.named import is_hub_name, offline

_TIMEOUT_S: Final = 10.0
_ASK: Final = """
import sys
from huggingface_hub import hf_hub_download
for name in sys.argv[2:]:
    hf_hub_download(sys.argv[1], name)
"""


def asked_files(
    model: str, environ: Mapping[str, str], say: Callable[[str], None]
) -> ModelFiles | None:
    """As `model_files`, the hub asked where nothing is here. say: told that it is."""
    found = model_files(model, environ)
    if found is None and is_hub_name(model) and not offline(environ):
        say(f"asking the hub how large {model} is")
        fetch_sizes(model, environ)
        found = model_files(model, environ)
    return found


def fetch_sizes(model: str, environ: Mapping[str, str]) -> None:
    """Fetch what tells a model's sizes into the hub's cache: kilobytes, and no weights.

    Nothing where `model` isn't a hub's name or the hub may not be asked, or doesn't answer: whoever
    reads the cache then finds nothing.
    """
    modelscope = environ.get("VLLM_USE_MODELSCOPE", "")
    if not is_hub_name(model) or offline(environ) or modelscope:
        return
    # A process of its own: it is slow to import, and may wait long for a network.
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", _ASK, model, CONFIG, INDEXES[0]],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
