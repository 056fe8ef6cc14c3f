"""The arms of a comparison: stock vLLM as it is, stock tuned, and each policy."""

from typing import Final

from headway.bench.engines.engine import ArmEngine
from headway.core.batching.settings import STOCK

TUNED: Final = "vllm-tuned"
SLO: Final = "slo"
ARMS: Final = (STOCK, TUNED, "sequential", "parallel", "priority", SLO)


def arm_spec(
    arm: str,
    *,
    flags: tuple[str, ...],
    model: str | None,
    tpot_limit_s: float,
    tuned_threshold_tokens: int,
) -> ArmEngine:
    """The engine of an arm.

    flags: given to every arm alike.
    tpot_limit_s: told to `slo`, the only arm that can use it.
    tuned_threshold_tokens: what `vllm-tuned` gives a long prompt in a step, at least.
    """
    if arm not in ARMS:
        raise ValueError(f"unknown arm {arm!r}; known are: {', '.join(ARMS)}")
    own: tuple[str, ...] = ()
    if arm == TUNED:
        own = (
            *("--long-prefill-token-threshold", str(tuned_threshold_tokens)),
            "--long-prefill-token-threshold-adaptive",
        )
    if arm == SLO:
        own = ("--tpot-slo-s", f"{tpot_limit_s:.4f}")
    policy = STOCK if arm in (STOCK, TUNED) else arm
    return ArmEngine(arm, policy, (*flags, *own), model)
