"""Engines on other machines: whether one machine is enough, and what goes there with them."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from headway.fleet.plan import vllm_flags
from headway.fleet.plan.spec import EngineSpec

_CARRIED: Final = ("VLLM_", "HF_")
"""Settings that a user makes where the supervisor runs, and means for engines anywhere."""


def too_small(spec: EngineSpec, nodes: Collection[Mapping[str, Any]]) -> str | None:
    """The node to start from where an engine's GPUs must be on several; None if one has enough.

    nodes: as `ray.nodes()` has them. An engine whose flags name Ray's executor spreads too.
    """
    gpus = {
        str(node["NodeID"]): float(node["Resources"].get("GPU", 0))
        for node in nodes
        if node["Alive"]
    }
    largest = max(gpus, key=lambda node: (gpus[node], node), default=None)
    ranks = spec.tensor_parallel_size * spec.pipeline_parallel_size
    asked = vllm_flags.given(spec.flags).get(vllm_flags.EXECUTOR)
    wanted = asked is not None and asked.value == "ray"
    if largest is None or not gpus[largest]:
        return None  # it waits for a node with GPUs
    return largest if wanted or ranks > gpus[largest] else None


def carried(env: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """What of an engine's environment goes with it to another machine: what isn't as it is here
    anyway, and the settings of vLLM and of Hugging Face's hub.
    """
    return {
        name: value
        for name, value in env.items()
        if here.get(name) != value or name.startswith(_CARRIED)
    }
