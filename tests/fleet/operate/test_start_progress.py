"""How far a start is, from lines as vLLM 0.32 writes them."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.fleet.operate import display, start_progress
from headway.fleet.operate.display import Row
from headway.fleet.operate.logs import Tail, end_of, last_lines
from headway.fleet.operate.start_progress import PHASES, StartProgress, after

CPU_START = """\
(APIServer pid=5622) INFO 11-29 22:54:36 [model.py:733] Resolved architecture: LlamaForCausalLM
(APIServer pid=5622) WARNING 11-29 22:54:36 [vllm.py:1703] Enforce eager set, disabling \
torch.compile, CUDAGraphs, and JIT kernel warmup.
(EngineCore pid=5645) INFO 11-29 22:54:48 [core.py:133] Initializing a V1 LLM engine (v0.32.0) ...
(Worker pid=5681) INFO 11-29 22:55:00 [cpu_model_runner.py:68] Starting to load model /m/smollm...
Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]
Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  3.13it/s]
(Worker pid=5681) INFO 11-29 22:55:01 [default_loader.py:501] Loading weights took 0.33 seconds
(EngineCore pid=5645) INFO 11-29 22:55:04 [core.py:402] init engine (profile, create kv cache, \
warmup model) took 2.55 s
INFO:     Application startup complete.
"""
GPU_START = """\
model-00001-of-00002.safetensors:  34%|███▍      | 1.7G/4.9G [00:30<00:40, 80MB/s]
(Worker_TP0 pid=2) INFO 11-29 22:55:00 [gpu_model_runner.py:5040] Starting to load model x/y...
(Worker_TP0 pid=2) Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03]
(Worker_TP0 pid=2) INFO 11-29 22:55:09 [gpu_model_runner.py:5150] Model loading took 14.9 GiB
(Worker_TP0 pid=2) INFO 11-29 22:55:09 [monitor.py:40] Starting torch.compile
(Worker_TP1 pid=3) Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:04<00:00]
(Worker_TP0 pid=2) INFO 11-29 22:55:30 [backends.py:398] Compiling a graph for compile range x
(Worker_TP0 pid=2) Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|█████     | 10/20
(Worker_TP0 pid=2) Capturing CUDA graphs (decode, FULL):   5%|▌         | 1/20 [00:00<00:02]
(Worker_TP0 pid=2) INFO 11-29 22:55:50 [gpu_model_runner.py:6582] Graph capturing finished in 9 secs
INFO:     Application startup complete.
"""


def phases(log):
    """What is shown as the log grows line by line, without repetitions."""
    now, shown = StartProgress(), ["starting"]
    for line in log.splitlines(keepends=True):
        now = after(now, line)
        if str(now) != shown[-1]:
            shown.append(str(now))
    return shown


def test_a_start_on_a_cpu_without_compilation():
    assert phases(CPU_START) == [
        "starting",
        "loading",
        "loading 0%",
        "loading 100%",
        "preparing to serve",
        "ready",
    ]


def test_a_start_on_gpus_with_workers_at_different_points():
    assert phases(GPU_START) == [
        "starting",
        "downloading 34%",
        "loading",
        "loading 25%",
        "compiling",
        "capturing graphs 50%",
        "capturing graphs 5%",
        "preparing to serve",
        "ready",
    ]


def test_a_bar_that_draws_itself_anew_is_read_to_its_last_state():
    bar = "\r".join(f"Loading safetensors checkpoint shards: {n}% Completed" for n in (10, 40, 70))
    assert str(after(StartProgress(), bar)) == "loading 70%"


@given(st.lists(st.sampled_from((CPU_START + GPU_START).splitlines()), max_size=30))
def test_a_start_never_goes_back(lines):
    now = StartProgress()
    for line in lines:
        later = after(now, line)
        assert PHASES.index(later.phase) >= PHASES.index(now.phase)
        now = later


@given(st.text(max_size=200))
def test_any_text_can_be_read(text):
    assert after(StartProgress(), text).phase in PHASES


# Logs


def test_a_tail_reads_what_is_added_and_goes_on_in_a_new_file(tmp_path):
    path = tmp_path / "a.log"
    tail = Tail(path)
    assert tail.read() == ""
    path.write_text("one\n")
    assert (tail.read(), tail.read()) == ("one\n", "")
    with path.open("a") as file:
        file.write("two\n")
    path.rename(tmp_path / "a.log.1")
    path.write_text("three\n")
    assert (tail.read(), tail.restarted) == ("two\n", False)
    assert (tail.read(), tail.restarted) == ("three\n", True)
    path.write_text("4\n")
    assert (tail.read(), tail.restarted) == ("4\n", True)
    tail.close()


def test_a_tail_from_the_end_leaves_out_what_was_there(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("old\n")
    tail = Tail(path, from_end=True)
    with path.open("a") as file:
        file.write("new\n")
    assert tail.read() == "new\n"
    tail.close()


def test_ends_of_logs_are_whole_lines(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"first\nsecond\nth\xffrd\n")
    assert last_lines(path, 2) == ["second", "th\ufffdrd"]
    assert end_of(path, 10) == "th\ufffdrd\n"
    assert end_of(path, 1000).startswith("first\n")
    assert end_of(tmp_path / "none", 10) == ""


# The display


class Screen(io.StringIO):
    """A terminal: `lines` is what one sees."""

    def isatty(self):
        return True

    @property
    def lines(self):
        lines, row = [""], 0
        for part in re.findall(r"\x1b\[\d*[A-Z]|\n|[^\x1b\n]+", self.getvalue()):
            if part == "\n":
                row += 1
                if row == len(lines):
                    lines.append("")
            elif part.endswith("A") and part.startswith("\x1b"):
                row -= int(part[2:-1])
                assert row >= 0
            elif part == "\x1b[2K":
                lines[row] = ""
            elif part == "\x1b[J":
                del lines[row + 1 :]
                lines[row] = ""
            else:
                assert not lines[row], "written over without being cleared"
                lines[row] = part
        return lines[:-1]


ROWS = st.lists(
    st.builds(Row, st.sampled_from("abc"), st.sampled_from(PHASES), st.floats(0, 999)), max_size=30
)


@given(st.lists(st.one_of(ROWS, st.none(), st.sampled_from(["one", "two\nlines"])), max_size=12))
def test_the_terminal_shows_what_was_said_and_the_rows_as_they_are_now(events):
    screen = Screen()
    shown = display.Terminal(screen)
    said, rows = [], []
    for event in events:
        if event is None:
            shown.leave()
            said, rows = said + fitting(rows), []
        elif isinstance(event, str):
            shown.say(event)
            said += event.split("\n")
        else:
            shown.show(event)
            rows = event
    assert screen.lines == said + fitting(rows)


def fitting(rows):
    """What a terminal of 24 lines shows of rows."""
    kept = display.table(rows)
    if len(kept) > 23:
        kept[22:] = [f"  … and {len(kept) - 22} more"]
    return kept


def test_without_a_terminal_only_changes_are_told():
    told = []
    shown = display.display(io.StringIO(), told.append)
    for row in (
        Row("a-0", "starting", 0.0),
        Row("a-0", "starting", 1.0),
        Row("a-0", "loading 5%", 2.0),
        Row("a-0", "loading 9%", 3.0),
        Row("a-0", "backoff", None, "memory ran out"),  # the supervisor has said so
        Row("a-0", "ready", None),
    ):
        shown.show([row])
    shown.say("over")
    assert told == [
        "a-0: starting",
        "a-0: loading (2 s)",
        "a-0: ready",
        "over",
    ]


@pytest.mark.parametrize(("term", "kind"), [("xterm", display.Terminal), ("dumb", display.Plain)])
def test_the_terminal_decides_how_it_is_shown(monkeypatch, term, kind):
    monkeypatch.setenv("TERM", term)
    assert isinstance(display.display(Screen(), print), kind)


def test_columns_are_aligned():
    rows = [Row("prefill-0", "loading 45%", 12.3), Row("d-0", "failed", None, "why")]
    assert display.table(rows) == [
        "  prefill-0  loading 45%    12 s",
        "  d-0        failed               why",
    ]


def test_every_phase_is_reached_by_a_line():
    assert {phase for _, phase in start_progress._SIGNS} | {"starting"} == set(PHASES)
