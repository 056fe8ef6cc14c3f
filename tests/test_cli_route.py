"""The command line of `headway route`: flags, --check, errors."""

import sys

import pytest

from headway import cli
from headway import config as settings

pytest.importorskip("uvloop")

from headway.router import main

FILE = """\
[router]
port = 8123

[[pool]]
name = "all"
engines = ["http://127.0.0.1:8100"]
"""


@pytest.fixture
def started(monkeypatch):
    """Configurations with which a router would have been started, and their readers."""
    found = []
    monkeypatch.setattr(main, "run", lambda config, read, say: found.append((config, read)) or 0)
    return found


def run(*argv):
    return cli.main(["route", *argv])


def wrong(capsys, *argv, status=2):
    """What a wrong command line is told: its one line."""
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


def test_engines_make_a_unified_router(started):
    assert run("--engine", "http://127.0.0.1:1", "--engine=http://127.0.0.1:2") == 0
    [(config, read)] = started
    assert config.router.strategy == "unified"
    assert [engine.port for pool in config.pools for engine in pool.engines] == [1, 2]
    assert read is None


def test_prefill_and_decode_make_a_disaggregated_router(started):
    assert run("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2") == 0
    [(config, _)] = started
    assert config.router.strategy == "disaggregated"
    assert [pool.role for pool in config.pools] == ["prefill", "decode"]


def test_every_setting_of_the_router_has_a_flag(started, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text(f"a:{'0' * 64}\n")
    assert (
        run(
            "--engine=http://127.0.0.1:7",
            *("--host", "0.0.0.0"),  # noqa: S104
            *("--port", "1", "--admin_port", "2", "--receipt", "false", "--seed", "3"),
            *("--slo-ttft-s", "1.5", "--timeouts-first-byte-s-per-1k-tokens", "0"),
            *("--keys-file", str(keys), "--keys-hashes", f"b:{'1' * 64}"),
            *("--health-fails", "7", "--retries-ratio", "0.5"),
        )
        == 0
    )
    router = started[0][0].router
    assert (router.port, router.admin_port, router.receipt, router.seed) == (1, 2, False, 3)
    assert (router.slo.ttft_s, router.timeouts.first_byte_s_per_1k_tokens) == (1.5, 0)
    assert (router.health.fails, router.retries.ratio) == (7, 0.5)
    assert started[0][0].keys.names == ("a", "b")


def test_a_file_is_read_and_can_be_read_again(started, tmp_path):
    path = tmp_path / "headway.toml"
    path.write_text(FILE)
    assert run("--config", str(path)) == 0
    [(config, read)] = started
    assert config.router.port == 8123
    path.write_text(FILE.replace("8123", "8124"))
    assert read().router.port == 8124


def test_check_tells_what_the_settings_mean_and_starts_nothing(started, tmp_path, capsys):
    path = tmp_path / "headway.toml"
    path.write_text(FILE)
    assert run("--check", "--config", str(path)) == 0
    out, err = capsys.readouterr()
    assert out == settings.explain(settings.load(path))
    assert "where clients connect" in out
    assert not err
    assert not started


def test_ranges_of_clients_are_told_at_start(started, tmp_path, capsys):
    path = tmp_path / "headway.toml"
    path.write_text('[router.clients."*"]\npriority = [2, 9]\n' + FILE)
    assert run("--config", str(path)) == 0
    assert (
        "headway: clients may ask for priority from 2 to 9 (default 2)" in capsys.readouterr().err
    )
    path.write_text(FILE)
    assert run("--config", str(path)) == 0
    assert "may ask for" not in capsys.readouterr().err


def test_check_lists_everything_that_is_wrong(started, tmp_path, capsys):
    path = tmp_path / "headway.toml"
    path.write_text('config = 1\n[router]\nprot = 1\nport = "x"\n' + FILE.split("\n\n")[1])
    told = wrong(capsys, "--check", "--config", str(path)).splitlines()
    assert len(told) == 3
    assert f"{path}:1: config: " in told[0]
    assert f'{path}:3: router.prot: unknown setting; did you mean "port"?' in told[1]
    assert f"{path}:4: router.port: " in told[2]
    assert not started


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "--config: no engine is named; give FILE, or --engine URL"),
        ("--engine ftp://x", "--engine: "),
        ("--engine http://127.0.0.1:1 --port x", '--port: "x" is not a whole number'),
        ("--engine http://127.0.0.1:1 --port 99999", "--port: 99999 is out of range"),
        ("--engine http://127.0.0.1:1 --receipt maybe", '--receipt: "maybe" is not a yes or no'),
        ("--engine http://127.0.0.1:1 --strategy x", "--strategy: "),
        ("--engine http://127.0.0.1:1 --slo-ttft-s 0", "--slo-ttft-s: "),
        ("--engine http://127.0.0.1:1 --tls-cert x", "--tls-key"),
        ("--engine http://127.0.0.1:1 --colour red", "--colour: unknown; see headway route --help"),
        ("--engine http://127.0.0.1:1 more", "more: unknown; see headway route --help"),
        ("--engine", "argument --engine: expected one argument"),
        ("--prefill http://127.0.0.1:1", "--decode: is missing"),
        ("--decode http://127.0.0.1:1", "--prefill: is missing"),
        ("--config no/such/file.toml", "no/such/file.toml: can't be read: No such file"),
        ("--config x --engine http://127.0.0.1:1", "--engine: and --config are given"),
        ("--config x --port 1", "--port: and --config are given"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(started, capsys, line, told):
    assert told in wrong(capsys, *line.split()).splitlines()[0]
    assert not started


def test_the_engines_key_must_be_there(monkeypatch, capsys):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    flags = ("--engine", "http://127.0.0.1:1", "--keys-engine-key-env", "NO_SUCH_KEY")
    assert "NO_SUCH_KEY is not set" in wrong(capsys, *flags)


def test_what_is_missing_is_named(monkeypatch, capsys):
    find = cli.route.importlib.util.find_spec
    monkeypatch.setattr(
        cli.route.importlib.util, "find_spec", lambda name: None if name == "uvloop" else find(name)
    )
    told = wrong(capsys, "--engine", "http://127.0.0.1:1", status=1)
    assert told == "uvloop isn't installed; pip install 'headway[router]'"


def test_an_open_router_warns(started, capsys):
    assert run("--engine=http://127.0.0.1:1", "--host=0.0.0.0") == 0
    assert "warning: whoever reaches 0.0.0.0" in capsys.readouterr().err


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as end:
        run("--help")
    assert end.value.code == 0
    out = capsys.readouterr().out
    for flag in ("--config", "--check", "--engine", "--prefill", "--keys-file", "--receipt"):
        assert flag in out
