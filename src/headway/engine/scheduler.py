"""vLLM's scheduler, steered by a headway policy."""

from typing import Any, cast

import vllm
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as PlainScheduler
from vllm.v1.request import Request

from headway.core.batching.settings import parse
from headway.core.errors import SettingError
from headway.engine.compat import check_class, check_instance, untested
from headway.engine.conductor import Conductor
from headway.engine.steering import Steering

logger = init_logger("vllm.headway")
_Base: Any = object
"""One of vLLM's scheduler classes, once `steered` has made a class of both."""


class _Steered(_Base):
    """What headway adds to vLLM's scheduler; stands before it among the bases of a class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_instance(self, vllm.__version__)
        values = (self.vllm_config.additional_config or {}).get("headway", {})
        self._steering = Steering(self, parse(values, self.max_model_len))
        what_it_means = untested(vllm.__version__)
        if what_it_means:
            logger.warning("%s.", what_it_means)
        logger.info(self.headway.report.settings_block(self))

    @property
    def headway(self) -> Conductor:
        """What plans this scheduler's steps."""
        return self._steering.conductor

    def add_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().add_request(request, *args, **kwargs)
        self._steering.added(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._steering.begin_step()
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self._steering.end_step()
        self._steering.scheduled(output)
        return output

    def _make_cached_request_data(self, *args: Any, **kwargs: Any) -> Any:
        self._steering.return_withheld()
        return super()._make_cached_request_data(*args, **kwargs)

    def update_from_output(
        self, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._steering.finished(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output, *args, **kwargs)
        received = model_runner_output.kv_connector_output
        kv_lost = received is not None and bool(received.invalid_block_ids)
        self._steering.delivered(scheduler_output, kv_lost=kv_lost)
        return outputs

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        stats = super().make_stats(*args, **kwargs)
        self._steering.made_stats(stats)
        return stats

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._steering.forget(request)
        return super()._free_request(request, *args, **kwargs)


def steered(base: type) -> type:
    """A subclass of one of vLLM's scheduler classes that follows a headway policy.

    It takes the base's arguments; settings come from
    `vllm_config.additional_config["headway"]`.
    Raises IncompatibleVLLMError if the base isn't what headway was made for.
    """
    check_class(base, Request, vllm.__version__)
    return type(f"Headway{base.__name__}", (_Steered, base), {"__module__": __name__})


def Scheduler(*args: Any, **kwargs: Any) -> Any:  # noqa: N802  vLLM calls it like a class
    """The scheduler for `--scheduler-cls headway.engine.Scheduler`.

    Stands on vLLM's async scheduler where the engine schedules asynchronously,
    on the plain one elsewhere, as vLLM itself chooses.
    """
    config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    if config.model_config.is_diffusion:
        raise SettingError(
            "--scheduler-cls", "headway can't schedule diffusion models; leave it out"
        )
    base = AsyncScheduler if config.scheduler_config.async_scheduling else PlainScheduler
    return steered(cast("type", base))(*args, **kwargs)
