"""The figures of a round, and the options of a run."""

import math
import sys

import pytest

from headway.bench.engines import options
from headway.bench.judge.figures import Judge
from headway.bench.judge.outcomes import Alone
from headway.bench.load.exchange import CUT_OFF, Sample
from headway.core.slo import Slo

JUDGE = Judge(
    Slo(1.0, 4.0, 0.2), Alone(((45, 0.1), (4_608, 15.0)), 0.05, 0.06, 0.07), short_tokens=45
)


def sample(name: str, prompt: int, first_s: float, gaps: list[float], error=None) -> Sample:
    times = [first_s]
    for gap in gaps:
        times.append(times[-1] + gap)
    return Sample(name, prompt, len(times), 0.0, 0.0, tuple(times), error)


def test_contention_figures() -> None:
    found = JUDGE.contention(
        [
            sample("short", 45, 0.3, [0.05]),
            sample("short", 45, 2.0, [0.05]),
            sample("long", 4_608, 20.0, [0.05]),
            sample("running", 32, 0.2, [0.1] * 18 + [0.6], CUT_OFF),
        ],
        duration_s=10.0,
    )
    assert found["long_ttft_s"] == 20.0
    assert math.isclose(found["short_ttft_p50_s"], 1.15)
    assert math.isclose(found["short_ttft_p50_x_alone"], 11.5)
    assert 1.9 < found["short_ttft_p99_x_limit"] <= 2.0
    assert math.isclose(found["stall_s"], 0.6)
    assert math.isclose(found["stall_x_limit"], 3.0)
    assert math.isclose(found["tpot_p99_s"], 2.4 / 19)
    assert found["attainment"] == 0.75
    assert math.isclose(found["goodput_per_s"], 0.3)


def test_figures_without_data_are_none() -> None:
    found = JUDGE.contention([sample("short", 45, 0.3, [])], duration_s=10.0)
    assert found["long_ttft_s"] is None
    assert found["stall_s"] is None
    assert found["stall_x_limit"] is None
    assert JUDGE.lone([sample("long", 4_608, 9.0, [])]) == {"lone_ttft_s": 9.0}
    assert JUDGE.saturated([])["tokens_per_s"] is None


def read(monkeypatch, *arguments: str):
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    return options.read(options.parser("", 128), ["vllm", "slo"], ["parallel"])[0]


def test_stock_always_runs_and_arms_are_in_order(monkeypatch) -> None:
    assert read(monkeypatch).arms == ("vllm", "slo")
    assert read(monkeypatch, "--quick").arms == ("vllm", "parallel")
    assert read(monkeypatch, "--arms", "slo,sequential").arms == ("vllm", "sequential", "slo")
    assert read(monkeypatch).tuned_threshold == 128
    assert read(monkeypatch, "--tune").tuned_threshold is None


@pytest.mark.parametrize("bad", [["--arms", "magic"], ["--arms", "vllm"], ["--repeats", "0"]])
def test_bad_options_end_with_a_message(monkeypatch, capsys, bad) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, *bad)
    assert bad[0] in capsys.readouterr().err
