"""`headway serve` with a real engine: it answers, it stops, and it leaves nothing behind."""

import os
import re
import signal
import urllib.request

import openai
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

POLICY = "slo"


def client_of(engine):
    return openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0)


def chat(engine, **more):
    messages = [{"role": "user", "content": "Say something."}]
    return client_of(engine).chat.completions.create(
        model=engine.model, messages=messages, max_tokens=8, temperature=0, **more
    )


def test_an_engine_answers_reports_metrics_and_stops_when_told(engine):
    with engine(POLICY) as running:
        answer = chat(running).choices[0].message.content
        assert answer
        assert running.model in [m.id for m in client_of(running).models.list()]

        streamed = [c.choices[0].delta.content or "" for c in chat(running, stream=True)]
        assert "".join(streamed) == answer
        assert len(streamed) > 2

        with urllib.request.urlopen(running.url + "/metrics") as response:
            metrics = response.read().decode()
        done = re.search(r"^vllm:request_success_total\{.*length.*\} (\S+)$", metrics, re.MULTILINE)
        assert done
        assert float(done.group(1)) == 2

        pids = running.pids()
        assert len(pids) >= 4, pids
        running.launcher.send_signal(signal.SIGTERM)
        assert running.wait() == 0
        assert running.leaves_nothing()
        assert "stopped" in running.log.read_text()


def test_killing_the_launcher_outright_ends_all(engine):
    with engine(POLICY) as running:
        running.launcher.kill()
        assert running.wait() == -signal.SIGKILL
        assert running.leaves_nothing()


def test_killing_the_engine_core_outright_ends_all_and_is_reported(engine):
    """The other processes are covered by test_guard.py, with stand-ins for vLLM."""
    with engine(POLICY) as running:
        os.kill(running.pid_of("VLLM::EngineCore"), signal.SIGKILL)
        assert running.wait() > 0
        assert running.leaves_nothing()
        # "ended by itself", or "ended before it was ready" when it was killed that early.
        assert "headway: the engine ended" in running.log.read_text()
