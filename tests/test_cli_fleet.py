"""The command line of fleets: what is asked of whom, what is refused, and how."""

import fcntl
import json
import subprocess
import sys

import pytest

from headway import cli
from headway.fleet.errors import FleetError
from headway.fleet.operate import commands
from headway.fleet.operate.state_dir import Home

FILE = """\
[router]
port = 8123

[[pool]]
name = "all"
replicas = 1
devices = [0]
"""


def run(*argv):
    return cli.main(list(argv))


def wrong(capsys, *argv, status=2):
    """What a wrong command line is told."""
    try:
        code = run(*argv)
    except SystemExit as end:
        code = end.code
    assert code == status
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("headway: error: ")
    return err.removeprefix("headway: error: ").rstrip("\n")


@pytest.fixture(autouse=True)
def _heard(monkeypatch):
    """`say` writes to the descriptor; here it can be captured."""
    monkeypatch.setattr(cli, "say", lambda text: sys.stderr.write(f"headway: {text}\n"))


@pytest.fixture(autouse=True)
def _place(monkeypatch, tmp_path):
    """No file and no fleet are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def asked(monkeypatch):
    """What supervisors were asked."""
    found = []

    def ask(name, request, timeout_s=None):
        found.append((name, request))
        Home(name).make()
        (Home(name).path / "lock").touch()
        return {"added": ["decode-1"], "leaving": [], "restarted": ["a-0"]}

    monkeypatch.setattr(commands, "ask", ask)
    return found


@pytest.mark.process
def test_the_command_line_is_cheap_to_import():
    """What fleets, routers and engines run on is imported when it is needed."""
    code = (
        "import sys, headway.cli\n"
        "heavy = {'asyncio', 'shtab'}\n"
        "print(*[n for n in sys.modules if n.startswith('headway.fleet.') or n in heavy])"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout.split() == ["headway.fleet.cli"]


@pytest.mark.parametrize(
    ("line", "name", "request_"),
    [
        ("drain decode-0", "default", {"do": "drain", "engine": "decode-0"}),
        ("undrain decode-0 --name x", "x", {"do": "undrain", "engine": "decode-0"}),
        ("scale decode=3", "default", {"do": "scale", "pool": "decode", "replicas": 3}),
        ("restart a=b", "default", {"do": "restart", "pool": "a=b"}),
        ("down", "default", {"do": "down", "force": False}),
        ("down --force --name y", "y", {"do": "down", "force": True}),
    ],
)
def test_a_supervisor_is_asked(asked, line, name, request_):
    assert run(*line.split()) == 0
    assert asked[-1] == (name, request_)


def test_what_a_change_of_size_leads_to_is_told(asked, capsys):
    assert run("scale", "decode=2") == 0
    assert capsys.readouterr().err == "headway: starting decode-1; see headway status\n"


@pytest.mark.process
def test_down_returns_when_nothing_holds_the_lock_any_more(asked, monkeypatch):
    home = Home("default")
    home.make()
    holder = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX)"
    lock = home.path / "lock"
    lock.touch()
    command = [sys.executable, "-c", f"{holder}; print(flush=True); sys.stdin.read()", lock]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    flock, waited = fcntl.flock, []

    def at_the_lock(file, how):
        with pytest.raises(BlockingIOError):
            flock(file, how | fcntl.LOCK_NB)
        process.stdin.close()  # the holder ends
        flock(file, how)
        waited.append(how)

    with subprocess.Popen(command, **pipes) as process:
        process.stdout.readline()
        monkeypatch.setattr(fcntl, "flock", at_the_lock)
        assert run("down") == 0
        assert waited == [fcntl.LOCK_EX]


@pytest.mark.parametrize(
    "command", ["status", "drain a-0", "undrain a-0", "scale a=1", "restart a", "reload", "down"]
)
def test_without_a_fleet_it_is_told_how_to_start_one(capsys, command):
    told = wrong(capsys, *command.split(), status=3)
    assert told == "no fleet default runs here; start it with headway up"


def test_what_a_supervisor_refuses_is_told(monkeypatch, capsys):
    def ask(name, request, timeout_s=None):
        raise FleetError("no engine x; there are: a-0")

    monkeypatch.setattr(commands, "ask", ask)
    assert wrong(capsys, "drain", "x", status=1) == "no engine x; there are: a-0"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("scale decode", "argument POOL=N: 'decode' is not POOL=N; write for example decode=2"),
        ("scale =2", "argument POOL=N: '=2' is not POOL=N"),
        ("drain", "the following arguments are required: NAME"),
        ("status --watch --json", "argument --json: not allowed with argument --watch"),
        ("up --json", "--json: is for --dry-run"),
        ("status --colour", "--colour: unknown; see headway status --help"),
        ("up a b", "b: unknown; see headway up --help"),
        ("render x", "argument target: invalid choice: 'x'"),
        ("init --strategy x", "argument --strategy: invalid choice: 'x'"),
    ],
)
def test_wrong_usage_is_told_in_one_line(capsys, line, told):
    said = wrong(capsys, *line.split())
    assert said.startswith(told)
    assert "\n" not in said


NO_NUMBERS = (
    *("two", "1.5", "1e3", "1e400", "nan", "inf", "true", "-1", "+1", "1_0", "0x1", "", "\u0661"),
    *("20000000", "1" * 30, "9" * 5000),
)
"""Of which none is a number of engines, of lines, of cores, of seconds or of a port."""


@pytest.mark.parametrize("number", NO_NUMBERS, ids=lambda number: number[:12] or "nothing")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("scale decode=", "argument POOL=N: {} is not a whole number from 1 to 1000"),
        ("logs a-0 --lines=", "argument -n/--lines: {} is not a whole number from 0 to 1000000"),
        ("render kubernetes --cpus=", "argument --cpus: {} is not a whole number from 1 to 10000"),
        ("serve --port=", "--port: {} is not a whole number from 0 to 65535"),
        ("serve --shutdown-timeout=", "--shutdown-timeout: {} is not a whole number from 0 to 604"),
        ("route --engine http://h:1 --check --port=", "--port: "),
    ],
)
def test_what_is_no_number_is_told_with_what_would_be(capsys, line, told, number):
    *words, last = line.split()
    said = wrong(capsys, *words, last + number)
    assert said.startswith(told.split("{}")[0])
    assert "{}" not in told or told.split("{}")[1] in said
    assert "whole number from " in said
    assert len(said) < 200, "however long it was"


@pytest.mark.parametrize("command", ["up", "up --dry-run", "render kubernetes", "doctor"])
def test_a_missing_file_is_told(capsys, command):
    told = wrong(capsys, *command.split(), "none.toml")
    assert told == "none.toml: no such file; `headway init none.toml` writes one"


def test_every_command_has_help(capsys):
    from headway.fleet.cli import names

    for name in names():
        with pytest.raises(SystemExit) as end:
            run(name, "--help")
        assert end.value.code == 0
        assert f"usage: headway {name}" in capsys.readouterr().out


# Logs


@pytest.fixture
def log():
    home = Home("default")
    home.make()
    path = home.log("a-0")
    path.write_text("".join(f"line {n}\n" for n in range(100)))
    home.log("router").write_text("routed\n")
    return path


def test_the_last_lines_of_a_log_are_printed(log, capsys):
    assert run("logs", "a-0", "-n", "2") == 0
    assert capsys.readouterr().out == "line 98\nline 99\n"
    assert run("logs", "a-0") == 0
    assert len(capsys.readouterr().out.splitlines()) == 50
    assert run("logs", "a-0", "-n", "0") == 0
    assert capsys.readouterr().out == ""
    assert run("logs", "router") == 0
    assert capsys.readouterr().out == "routed\n"


@pytest.mark.parametrize("name", ["b-0", "../a-0", "", "a-0.log"])
def test_a_log_that_is_not_there_is_told_with_those_that_are(log, capsys, name):
    told = wrong(capsys, "logs", name, status=4)
    assert told == f"no log of {name} in the fleet default; there are: a-0, router"


MIXED = """\
headway: ready on http://127.0.0.1:8000 (unified)
{"request_id":"a","engines":["all/h:1"],"queue_s":0.000512,"status":200}

INFO fetching http://me:s3cret@h/x
[1, 2]
"""
AS_JSON = [
    {"text": "headway: ready on http://127.0.0.1:8000 (unified)"},
    {"request_id": "a", "engines": ["all/h:1"], "queue_s": 0.000512, "status": 200},
    {"text": "INFO fetching http://me:***@h/x"},
    {"text": "[1, 2]"},
]


def test_a_log_is_json_lines_for_programs(log, capsys):
    log.write_text(MIXED)
    assert run("logs", "a-0", "--json") == 0
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == AS_JSON
    assert not err


def growing(log, steps):
    """A sleep in which the log grows by a step ("a"), or is put aside and begun anew ("w")."""

    def sleep(_s):
        mode, text = next(steps, (None, None))
        if mode is None:
            raise KeyboardInterrupt
        if mode == "w":
            log.rename(log.with_suffix(".log.1"))
        with log.open(mode) as file:
            file.write(text)

    return sleep


def test_followed_json_lines_are_whole_however_the_log_grows(log, capsys, monkeypatch):
    log.write_text("")
    pieces = iter([*(("a", MIXED[at : at + 7]) for at in range(0, len(MIXED), 7)), ("a", "half")])
    steps = iter([*pieces, ("w", '{"new": '), ("a", "1}\n")])

    monkeypatch.setattr(commands.time, "sleep", growing(log, steps))
    assert run("logs", "a-0", "-n", "0", "-f", "--json") == 130
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [*AS_JSON, {"text": "half"}, {"new": 1}]


def test_a_log_is_followed_into_its_next_run(log, capsys, monkeypatch):
    """As the engine restarts: its log is put aside and begun anew."""
    steps = iter([("a", "more\n"), ("w", "a new run\n")])

    monkeypatch.setattr(commands.time, "sleep", growing(log, steps))
    assert run("logs", "a-0", "-n", "1", "-f") == 130
    assert capsys.readouterr().out == "line 99\nmore\na new run\n"


@pytest.mark.process
def test_a_reader_who_has_seen_enough_ends_it_quietly(log):
    log.write_text("line\n" * 100_000)
    command = f"{sys.executable} -m headway logs a-0 -n 100000 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, text=True)
    assert (done.stdout, done.stderr) == ("line\n", "")


# Starting


@pytest.mark.process
def test_a_file_is_written_and_not_over_another(capsys, tmp_path):
    assert run("init", "--strategy", "unified") == 0
    assert 'strategy = "unified"' in (tmp_path / "headway.toml").read_text()
    capsys.readouterr()
    told = wrong(capsys, "init", status=1)
    assert told == "headway.toml exists; use another name, or --force"
    assert run("init", "--force", "--model", "org/x") == 0
    assert 'model = "org/x"' in (tmp_path / "headway.toml").read_text()


@pytest.mark.process
def test_a_dry_run_prints_commands_for_a_shell_and_starts_nothing(capsys, tmp_path, monkeypatch):
    from headway.fleet import up

    monkeypatch.setattr(up.bundled, "ensure", lambda: tmp_path / "a model")
    monkeypatch.setattr(up.asyncio, "run", lambda *_: pytest.fail("something was started"))
    (tmp_path / "headway.toml").write_text(FILE)
    assert run("up", "--dry-run") == 0
    out, err = capsys.readouterr()
    assert "headway.toml" in err
    assert "# all-0: http://127.0.0.1:" in out
    assert f"--model '{tmp_path}/a model'" in out
    assert "-m headway route" in out
    assert '# engines = ["http://127.0.0.1:' in out
    subprocess.run(["bash", "-n"], input=out, check=True, text=True)
    assert not (tmp_path / "state").exists()


@pytest.mark.process
def test_a_dry_run_is_json_for_programs(capsys, tmp_path, monkeypatch):
    from headway.fleet import up

    monkeypatch.setattr(up.bundled, "ensure", lambda: tmp_path / "model")
    (tmp_path / "headway.toml").write_text(FILE + 'env = { HF_TOKEN = "s3cret" }\n')
    assert run("up", "--dry-run", "--json") == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [engine["name"] for engine in told["engines"]] == ["all-0"]
    assert told["engines"][0]["process"]["set"].items() >= {"HF_TOKEN": "***"}.items()
    assert "s3cret" not in out + err


@pytest.mark.process
@pytest.mark.parametrize(
    "line",
    [
        ("up", "--model", "./nope"),
        ("up", "--dry-run", "--model", "./nope"),
        ("init", "--model", "./nope"),
        ("serve", "./nope"),
        ("serve", "--model", "./nope"),
    ],
)
def test_a_model_that_is_not_there_is_told_before_anything_starts(capsys, tmp_path, line):
    told = wrong(capsys, *line)
    assert "there is no directory ./nope; a model is a directory with config.json" in told
    assert not list(tmp_path.glob("*.toml"))


@pytest.mark.process
@pytest.mark.parametrize("line", [("up", "x.toml"), ("up", "--dry-run", "x.toml")])
def test_a_model_that_is_not_there_is_told_with_its_place_in_the_file(capsys, tmp_path, line):
    pools = FILE + '\n[[pool]]\nname = "more"\nmodel = "./nope"\n'
    (tmp_path / "x.toml").write_text(pools.replace("replicas = 1", 'model = "./neither"'))
    assert run(*line) == 2
    told = capsys.readouterr().err
    assert f"pool[0].model: there is no directory {tmp_path}/neither" in told
    assert f"pool[1].model: there is no directory {tmp_path}/nope" in told


@pytest.mark.process
def test_the_hub_is_asked_as_the_pool_says(capsys, tmp_path):
    pool = 'model = "org/x"\nenv = { HF_HUB_OFFLINE = "1", HF_HOME = "cache" }'
    (tmp_path / "x.toml").write_text(FILE.replace("replicas = 1", pool))
    assert "org/x isn't in the hub's cache cache/hub" in wrong(capsys, "up", "--dry-run", "x.toml")


@pytest.mark.process
def test_a_model_s_path_is_right_in_a_file_elsewhere_too(capsys, tmp_path):
    """In a file "./" is the file's folder, on the command line that of the shell."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "pytorch_model.bin").write_bytes(b"")
    (tmp_path / "below").mkdir()
    assert run("init", "--model", "./model", "below/x.toml") == 0
    assert run("up", "--dry-run", "below/x.toml") == 0
    assert f"--model {model}" in capsys.readouterr().out


@pytest.mark.process
def test_what_is_wrong_in_a_file_is_told_before_anything_starts(capsys, tmp_path):
    (tmp_path / "x.toml").write_text(FILE.replace("replicas = 1", 'role = "prefil"'))
    told = wrong(capsys, "up", "x.toml", "--dry-run")
    assert told.startswith("x.toml:6: pool.0.role: ") or "role" in told
