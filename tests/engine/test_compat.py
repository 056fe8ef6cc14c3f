"""A vLLM that differs from what headway stands on is refused, and the difference named."""

import logging
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from headway.engine.compat import (
    ATTRIBUTES,
    BLOCKS_PARAMETERS,
    METHODS,
    SUPPORTED,
    IncompatibleVLLMError,
    check_class,
    check_instance,
    untested,
)
from headway.engine.scheduler import steered

from .harness import make_scheduler


class Without:
    """Hides one attribute of what it wraps."""

    def __init__(self, wrapped, hidden):
        self._wrapped = wrapped
        self._hidden = hidden

    def __getattr__(self, name):
        if name == self._hidden:
            raise AttributeError(name)
        return getattr(self._wrapped, name)


class Replaced:
    """Shows other values for some attributes of what it wraps."""

    def __init__(self, wrapped, **values):
        self.__dict__.update(values)
        self._wrapped = wrapped

    def __getattr__(self, name):
        return getattr(self._wrapped, name)


def refusal(check, *args):
    with pytest.raises(IncompatibleVLLMError) as caught:
        check(*args, "9.9")
    assert "9.9" in str(caught.value)
    assert SUPPORTED[0] in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "version",
    ["0.32", "0.32.0", "0.33.0", "0.33.1", "0.33.0.post2", "0.33.0+cpu", "0.32.5.post1+x"],
)
def test_supported_releases_are_no_surprise(version):
    assert untested(version) is None


@pytest.mark.parametrize(
    "version",
    [
        "0.31.0",
        "0.34.0",
        "0.330.0",
        "1.0.0",
        "0.33.0rc1",
        "0.33.1.dev7+g0a1b2c3",
        "0.34.0.dev0",
        "x",
    ],
)
def test_other_releases_are_told_with_what_that_means(version):
    told = untested(version)
    assert f"isn't tested with vLLM {version} " in told
    assert " and ".join(SUPPORTED) in told
    assert "schedules by itself" in told


def test_what_pip_installs_is_supported():
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"]
    (gpu,) = [Requirement(each) for each in extras["gpu"] if each.startswith("vllm")]
    (cpu,) = [Requirement(each) for each in extras["cpu"] if each.startswith("vllm")]
    minors = [release.split(".")[1] for release in SUPPORTED]
    assert [str(n) for n in range(100) if f"0.{n}.0" in gpu.specifier] == minors
    assert any(f"{release}.0" in cpu.specifier for release in SUPPORTED)


def test_an_untested_vllm_starts_with_one_warning(folder, monkeypatch, caplog):
    monkeypatch.setattr("vllm.__version__", "9.9.0")
    logger = logging.getLogger("vllm.headway")
    logger.addHandler(caplog.handler)
    make_scheduler(folder)
    logger.removeHandler(caplog.handler)
    warnings = [r for r in caplog.records if r.name == logger.name and r.levelname == "WARNING"]
    assert len({record.getMessage() for record in warnings}) == 1
    assert "9.9.0" in warnings[0].getMessage()


def test_requests_that_fail_in_another_way_are_named(folder):
    scheduler = make_scheduler(folder, None)
    odd = Replaced(scheduler, grammar_compile_error_reqs=[])
    assert "grammar_compile_error_reqs is a list" in refusal(check_instance, odd)


@pytest.mark.parametrize("base", [Scheduler, AsyncScheduler])
def test_the_installed_vllm_is_accepted(base):
    check_class(base, Request, "installed")


@pytest.mark.parametrize("name", METHODS)
def test_a_missing_method_is_named(name):
    class Gone(type):
        def __getattribute__(cls, asked):
            if asked == name:
                raise AttributeError(asked)
            return super().__getattribute__(asked)

    class Odd(Scheduler, metaclass=type("Meta", (Gone, type(Scheduler)), {})):
        pass

    assert f"Scheduler has no {name}()" in refusal(check_class, Odd, Request)


@pytest.mark.parametrize("name", [name for name, parameters in METHODS.items() if parameters])
def test_a_renamed_parameter_is_named(name):
    odd = type("Odd", (Scheduler,), {name: lambda self, other: None})
    for parameter in METHODS[name]:
        assert f"{name}() has no parameter {parameter}" in refusal(check_class, odd, Request)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_missing_attribute_is_named(folder, name):
    scheduler = make_scheduler(folder, None)
    assert f"Scheduler has no {name}" in refusal(check_instance, Without(scheduler, name))


@pytest.mark.parametrize("name", ["get_computed_blocks", "coordinator", "block_pool"])
def test_a_missing_part_of_the_kv_cache_manager_is_named(folder, name):
    scheduler = make_scheduler(folder, None)
    odd = Replaced(scheduler, kv_cache_manager=Without(scheduler.kv_cache_manager, name))
    assert f"KVCacheManager has no {name}" in refusal(check_instance, odd)


@pytest.mark.parametrize("name", ["touch", "free_blocks", "get_num_free_blocks"])
def test_a_missing_part_of_the_block_pool_is_named(folder, name):
    scheduler = make_scheduler(folder, None)
    manager = scheduler.kv_cache_manager
    odd = Replaced(manager, block_pool=Without(manager.block_pool, name))
    assert f"BlockPool has no {name}" in refusal(
        check_instance, Replaced(scheduler, kv_cache_manager=odd)
    )


def test_a_block_count_with_other_parameters_is_named(folder):
    scheduler = make_scheduler(folder, None)
    manager = scheduler.kv_cache_manager
    coordinator = Replaced(manager.coordinator, get_num_blocks_to_allocate=lambda request_id: 0)
    odd = Replaced(scheduler, kv_cache_manager=Replaced(manager, coordinator=coordinator))
    message = refusal(check_instance, odd)
    for name in BLOCKS_PARAMETERS[1:]:
        assert f"has no parameter {name}" in message


def test_a_schedule_that_reads_something_else_is_refused():
    class Odd(Scheduler):
        def schedule(self):
            return self.running

    message = refusal(check_class, Odd, Request)
    assert "schedule() does not read self.waiting" in message
    assert "num_output_placeholders" in message


def test_requests_without_an_attribute_are_refused():
    class Bare:
        pass

    assert "Request has no is_prefill_chunk" in refusal(check_class, Scheduler, Bare)


def test_steering_an_odd_class_fails_before_it_is_used():
    odd = type("Odd", (Scheduler,), {"add_request": lambda self, other: None})
    with pytest.raises(IncompatibleVLLMError, match="without --scheduler-cls"):
        steered(odd)
