"""vLLM's own engine core on GPUs that aren't there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What several engines say and do, by name."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("core_process.py"), tmp_path_factory.mktemp("m")],
        env={**env, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_vllm_takes_it_for_four_h100s(found):
    engine = found["async"]
    assert engine["device"] == "NVIDIA H100 80GB HBM3"
    assert engine["kv_tokens"] == pytest.approx(484_016, rel=0.01)
    assert (engine["step_tokens"], engine["seats"], engine["block_tokens"]) == (8192, 1024, 16)
    assert (engine["graph_mode"], engine["graphs"][-1]) == ("FULL_AND_PIECEWISE", 512)
    assert engine["async"]
    assert engine["v2"]
    assert engine["scheduler"] == "AsyncScheduler"
    assert {each["seats"] for name, each in found.items() if name != "logprobs"} == {1024}
    assert found["plain"]["scheduler"] == "Scheduler"
    assert found["sequential"]["scheduler"] == "HeadwayAsyncScheduler"


@pytest.mark.parametrize("other", ["plain", "sequential", "sequential plain"])
def test_greedy_answers_are_the_same_however_steps_are_scheduled(found, other):
    assert found[other]["tokens"] == found["async"]["tokens"]
    assert [len(each) for each in found["async"]["tokens"].values()]


@pytest.mark.parametrize("ahead", ["", " plain"])
def test_sequential_plans_the_steps_that_vllm_would(found, ahead):
    ours, vllms = found[f"sequential{ahead}"], found[ahead.strip() or "async"]
    assert ours["steps"] == vllms["steps"]
    assert ours["took_s"] == vllms["took_s"]


def test_the_device_is_busy_from_the_first_step_to_the_last(found):
    """The host takes no time on this clock."""
    for name in ("async", "plain"):
        assert found[name]["took_s"] == pytest.approx(found[name]["modelled_s"], rel=1e-9)


def test_a_long_prompt_takes_the_time_that_its_steps_add_up_to(found):
    """70B on four H100s computes 30,000 tokens of prefill in two to three seconds."""
    assert 1.5 < found["plain"]["took_s"] < 4.0


def test_every_prompt_token_is_computed_once(found):
    for name in ("plain", "async"):
        chunks = sum(tokens for chunks, _, _ in found[name]["steps"] for tokens, _ in chunks)
        assert chunks == sum((1_000, 20_000, 300, 9_000, 64))


def test_logprobs_are_as_many_as_asked_for_and_of_the_token_that_was_written(found):
    asked = found["logprobs"]
    for count, (name, tokens) in enumerate(sorted(asked["tokens"].items())):
        rows = [row for [[row]] in asked["logprobs"][name]]
        assert [row[0] for row in rows] == tokens
        assert all(len(row) >= count + 1 for row in rows)
