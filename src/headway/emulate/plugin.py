"""The entry point: vLLM calls `register` in each of its processes, before it knows its platform."""

import os
from typing import Final

from headway.core.hardware.emulation import VARIABLE

_V2_RUNNER: Final = "VLLM_USE_V2_MODEL_RUNNER"


def register() -> str | None:
    """The platform that vLLM is to use; None, at no cost, unless an emulation is asked for."""
    if not os.environ.get(VARIABLE):
        return None
    # GPUs use this model runner by default; vLLM doesn't where it finds no Triton.
    os.environ.setdefault(_V2_RUNNER, "1")
    return "headway.emulate.platform.EmulatedPlatform"
