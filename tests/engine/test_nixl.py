import subprocess
import sys
from types import SimpleNamespace

import pytest

from headway.engine import nixl


class Config:
    """Stands for NIXL's agent configuration."""

    def __init__(self):
        self._delay = 7

    @property
    def pthrDelay(self):  # noqa: N802 -- NIXL's name
        return self._delay

    @pthrDelay.setter
    def pthrDelay(self, delay):  # noqa: N802 -- NIXL's name
        self._delay = delay


@pytest.mark.parametrize(("asked", "made"), [(0, 1000), (1000, 1000), (5000, 5000)])
def test_an_agents_thread_waits_at_least_as_long_as_told(asked, made):
    bindings = SimpleNamespace(nixlAgentConfig=Config)
    nixl.patient(bindings, 1000)
    config = bindings.nixlAgentConfig()
    config.pthrDelay = asked
    assert config.pthrDelay == made
    assert isinstance(config, Config)


def test_a_second_call_changes_nothing():
    """vLLM may load a plugin more than once in a process."""
    bindings = SimpleNamespace(nixlAgentConfig=Config)
    nixl.patient(bindings, 1000)
    first = bindings.nixlAgentConfig
    nixl.patient(bindings, 1000)
    assert bindings.nixlAgentConfig is first


def test_a_nixl_without_the_setting_is_left_alone():
    bindings = SimpleNamespace(nixlAgentConfig=object)
    with pytest.raises(AttributeError):
        nixl.patient(bindings, 1000)
    assert bindings.nixlAgentConfig is object


def test_a_platform_names_no_cores_for_transfers():
    class Platform:
        @classmethod
        def discover_numa_topology(cls):
            return [[7]]

    nixl.stay(Platform())
    assert Platform.discover_numa_topology() == Platform().discover_numa_topology() == []
    with pytest.raises(AttributeError):
        nixl.stay(object())


PRINTS = """
import os, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
loaded = "nixl._api" in sys.modules
delay = None
if loaded:
    config = sys.modules["nixl._api"].nixlBind.nixlAgentConfig()
    config.pthrDelay = 0
    delay = config.pthrDelay
from vllm.platforms import current_platform
named = current_platform.discover_numa_topology() != []
print("\\n", loaded, delay, named, os.environ.get("UCX_MEM_MMAP_HOOK_MODE"))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("value", "says"), [("1000", "True 1000 False none"), (None, "False None True None")]
)
def test_vllm_loads_it_and_real_nixl_obeys(monkeypatch, value, says):
    for name in (nixl.WAIT_VARIABLE, "UCX_MEM_MMAP_HOOK_MODE"):
        monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(nixl.WAIT_VARIABLE, value)
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], check=True, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.split("\n")[-2].strip() == says
