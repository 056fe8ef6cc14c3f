"""What headway relies on inside vLLM, checked when an engine starts.

vLLM's scheduler interface is private and moves between releases. Rather than
misbehave, headway refuses a vLLM in which something it stands on differs, and
says what. Where supported releases differ from one another, the difference is
found out here, once, by what a scheduler has and not by its version.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from headway.core.errors import HeadwayError

SUPPORTED: Final = ("0.32", "0.33")
"""Releases on which all tests of the scheduler run. `make test-vllm` and `.ci/run` read this list:
a new release is one more entry."""

METHODS: Final[dict[str, tuple[str, ...]]] = {
    "schedule": (),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "add_request": ("request",),
    "get_request_counts": (),
    "make_stats": (),
    "_make_cached_request_data": (),
    "_free_request": ("request",),
    "_preempt_request": ("request", "timestamp"),
}
"""Methods that are extended or called, with the parameters used by name or position."""

ATTRIBUTES: Final = (
    "cache_config",
    "connector",
    "deferred_waiting",
    "finished_recving_kv_req_ids",
    "grammar_compile_error_reqs",
    "kv_cache_manager",
    "kv_holding_waiting",
    "lora_config",
    "max_model_len",
    "max_num_active_reqs",
    "max_num_scheduled_tokens",
    "need_mamba_block_aligned_split",
    "num_spec_tokens",
    "num_waiting_for_streaming_input",
    "policy",
    "prefill_capacity_bound",
    "requests",
    "running",
    "scheduler_config",
    "vllm_config",
    "waiting",
    "_inflight_prefills",
    "_pause_state",
)
_FAILING: Final = "grammar_compile_error_reqs"
"""Requests that end with an error in the next `update_from_output()`."""
READ_BY_SCHEDULE: Final = (
    "self.running",
    "self.waiting",
    "self.max_num_scheduled_tokens",
    "num_output_placeholders",
    "_make_cached_request_data",
)
"""What `schedule()` must read for a plan to take effect."""

REQUEST_ATTRIBUTES: Final = (
    "arrival_time",
    "is_prefill_chunk",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_preemptions",
    "num_prompt_tokens",
    "priority",
    "request_id",
    "sampling_params",
    "spec_token_ids",
    "status",
)
BLOCKS_PARAMETERS: Final = (
    "request_id",
    "num_tokens",
    "new_computed_blocks",
    "num_encoder_tokens",
    "total_computed_tokens",
    "num_local_computed_tokens",
    "num_tokens_main_model",
    "apply_admission_cap",
)


class IncompatibleVLLMError(HeadwayError):
    """The installed vLLM differs from what headway relies on."""

    def __init__(self, version: str, differences: Iterable[str]) -> None:
        found = "; ".join(differences)
        super().__init__(
            f"this vLLM ({version}) differs from what headway's scheduler relies on: {found}. "
            f"Use vLLM {' or '.join(SUPPORTED)}, or start the engine without --scheduler-cls."
        )


def untested(version: str) -> str | None:
    """What it means to run this vLLM if it is none of `SUPPORTED`, else None.

    Patch releases and builds (`0.33.1`, `0.32.0+cpu`) count as their release; development builds
    and release candidates don't.
    """
    release = re.fullmatch(r"(\d+\.\d+)(\.\d+)*(\.post\d+)?(\+.*)?", version)
    if release and release[1] in SUPPORTED:
        return None
    return (
        f"headway isn't tested with vLLM {version} but with {' and '.join(SUPPORTED)}. What its "
        "scheduler relies on looks as it should, and where headway's own code fails, vLLM "
        "schedules by itself; but vLLM may carry out a plan in another way than it is meant, "
        "which shows as worse latency or as a step that fails"
    )


def check_class(scheduler: type, request: type, version: str) -> None:
    """Raise IncompatibleVLLMError unless the scheduler class and requests look as expected."""
    differences = [*_method_differences(scheduler), *_schedule_differences(scheduler)]
    source = inspect.getsource(request)
    differences += [
        f"Request has no {name}" for name in REQUEST_ATTRIBUTES if f"self.{name}" not in source
    ]
    if differences:
        raise IncompatibleVLLMError(version, differences)


def check_instance(scheduler: Any, version: str) -> None:
    """Raise IncompatibleVLLMError unless a constructed scheduler has what is used of it."""
    differences = [
        f"Scheduler has no {name}" for name in ATTRIBUTES if not hasattr(scheduler, name)
    ]
    manager: Any = getattr(scheduler, "kv_cache_manager", None)
    differences += [
        f"KVCacheManager has no {name}"
        for name in ("get_computed_blocks", "coordinator", "block_pool", "empty_kv_cache_blocks")
        if not hasattr(manager, name)
    ]
    refused: Any = getattr(scheduler, _FAILING, set())
    if not isinstance(refused, set | dict):
        differences.append(f"Scheduler.{_FAILING} is a {type(refused).__name__}")
    if not differences:
        needs = inspect.signature(manager.coordinator.get_num_blocks_to_allocate).parameters
        differences += [
            f"get_num_blocks_to_allocate has no parameter {name}"
            for name in BLOCKS_PARAMETERS
            if name not in needs
        ]
        differences += [
            f"BlockPool has no {name}"
            for name in ("get_num_free_blocks", "touch", "free_blocks", "num_gpu_blocks")
            if not hasattr(manager.block_pool, name)
        ]
    if differences:
        raise IncompatibleVLLMError(version, differences)


def failing(scheduler: Any) -> Callable[[str, str], None]:
    """How to have the next `update_from_output()` fail a request: called with its id and why.

    From 0.33 on the client is told why, as of a bad request; before, only that there was an error.
    """
    if isinstance(getattr(scheduler, _FAILING), set):
        return lambda request_id, why: getattr(scheduler, _FAILING).add(request_id)
    error = importlib.import_module("vllm.outputs").RequestError

    def fail(request_id: str, why: str) -> None:
        getattr(scheduler, _FAILING)[request_id] = error(code="validation_error", message=why)

    return fail


def _method_differences(scheduler: type) -> list[str]:
    differences = []
    for name, parameters in METHODS.items():
        method = getattr(scheduler, name, None)
        if method is None:
            differences.append(f"Scheduler has no {name}()")
            continue
        known = inspect.signature(method).parameters
        differences += [
            f"Scheduler.{name}() has no parameter {parameter}"
            for parameter in parameters
            if parameter not in known
        ]
    return differences


def _schedule_differences(scheduler: type) -> list[str]:
    for owner in scheduler.__mro__:
        if "schedule" in vars(owner):
            source = inspect.getsource(vars(owner)["schedule"])
            return [f"schedule() does not read {n}" for n in READ_BY_SCHEDULE if n not in source]
    return []
