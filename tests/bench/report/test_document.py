"""The form of a report, the table, the plot, and ratios with their spread."""

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.bench.judge import spread
from headway.bench.judge.spread import Spread
from headway.bench.report import document as report
from headway.bench.report import plot
from headway.bench.report.document import Goal


@pytest.mark.process
def test_a_report_has_what_rule_10_asks(tmp_path) -> None:
    goals = [
        Goal("short TTFT", 0.2, at_most=True, measured=Spread(0.1, 0.05, 0.3)),
        Goal("rate", 4.0, at_most=False, measured=Spread(3.9, 3.0, 5.0)),
        Goal("not run", 1.0, at_most=True, measured=None),
    ]
    path = tmp_path / "results" / "out.json"
    made = report.document(seed=7, configuration={"arms": ["vllm"]}, raw=[1], targets=goals)
    report.write(path, made)
    read = json.loads(path.read_text())
    assert set(read) == {
        *("seed", "commit", "versions", "machine", "configuration", "raw", "targets"),
    }
    assert read["seed"] == 7
    assert read["versions"]["python"]
    assert read["machine"]["cores"] >= 1
    for target in read["targets"]:
        assert {"name", "value", "low", "high", "bound", "met"} <= set(target)
    assert [target["met"] for target in read["targets"]] == [True, False, None]
    assert not list(path.parent.glob("*.part"))


def test_tables_align() -> None:
    text = report.table(("arm", "value"), [("vllm", 1.23456), ("slo", None), ("x", True)])
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split() == ["vllm", "1.23"]
    assert lines[3].split() == ["slo", "-"]
    assert "<= 0.2" in report.goals_table([Goal("a", 0.2, at_most=True, measured=None)])


def test_progress_writes_lines_and_keeps_ticks_from_files() -> None:
    out = io.StringIO()
    progress = report.ProgressLines(out)
    progress.tick("starting")
    progress.line("up")
    assert out.getvalue() == "[  0:00] up\n"


numbers = st.floats(0.01, 100)


@given(st.lists(st.tuples(numbers, numbers), min_size=1))
def test_ratios_pair_repeats(pairs) -> None:
    found = spread.ratios([a for a, _ in pairs], [b for _, b in pairs])
    assert found is not None
    assert found.low <= found.value <= found.high
    assert found.low == min(a / b for a, b in pairs)


def test_what_did_not_measure_is_left_out() -> None:
    assert spread.ratios([1.0, None], [0.0, 2.0]) is None
    assert spread.ratios([1.0, None, 3.0], [2.0, 2.0, 0.0]) == Spread(0.5, 0.5, 0.5)


@settings(max_examples=20)
@given(st.lists(numbers, min_size=1, max_size=20), st.integers(0, 99))
def test_the_bootstrap_holds_its_value_and_is_its_seed(values, seed) -> None:
    def mean(pick):
        return sum(values[i] for i in pick(len(values))) / len(values)

    found = spread.bootstrap(mean, seed)
    assert found is not None
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(sum(values) / len(values))
    assert found == spread.bootstrap(mean, seed)


def test_the_plot_is_an_svg_with_every_line(tmp_path) -> None:
    path = tmp_path / "a.svg"
    plot.write_lines(path, {"vllm <&": [(1, 0.5), (2, 0.25)], "slo": [(1, 1)]}, "x", "y", 0.9)
    text = path.read_text()
    assert text.startswith("<svg")
    assert text.count("<polyline") == 4
    assert "vllm &lt;&amp;" in text
