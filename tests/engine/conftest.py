"""What tests of the engine share."""

import os

import pytest
import vllm

from headway.core.latency import SETTLED_SAMPLES, StepShape, attention_work

from .harness import Clock, Driver, make_scheduler, model_dir

expected = os.environ.get("HEADWAY_TEST_VLLM", vllm.__version__)
if vllm.__version__ != expected:
    pytest.exit(f"these tests are for vLLM {expected} and found {vllm.__version__}", 4)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model folder without weights."""
    return model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture
def clock(monkeypatch):
    """Virtual time inside headway.engine."""
    made = Clock()
    monkeypatch.setattr("headway.engine.conductor.time", made)
    monkeypatch.setattr("headway.engine.tracks.time", made)
    return made


@pytest.fixture(params=["plain", "async"])
def drive(request, folder, clock):
    """Makes a driver on vLLM's plain scheduler, or on the async one with two steps in flight."""

    def made(policy="parallel", **options):
        steps_ahead = request.param == "async"
        scheduler = make_scheduler(folder, policy, async_scheduling=steps_ahead, **options)
        return Driver(scheduler, depth=2 if steps_ahead else 1, clock=clock)

    return made


def teach(scheduler):
    """Let the scheduler know how long the driver's virtual steps take."""
    for i in range(3 * SETTLED_SAMPLES):
        tokens, decodes = (0, 8, 64, 200, 512, 1_024, 4_096)[i % 7], (i * 5) % 17
        context = i * 61 % 9_000 if tokens else 0
        work = attention_work(tokens, context)
        shape = StepShape(tokens, work, context, decodes, decodes * 100)
        scheduler.headway.model.observe(shape, 0.02 + 1e-4 * (tokens + decodes))
