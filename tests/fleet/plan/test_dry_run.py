"""`headway up --dry-run`: what it prints does what `headway up` would."""

import json
import os
import subprocess
import sys

import pytest

from headway import config as settings
from headway.core import reports
from headway.core.json_shape import from_json
from headway.engine.start.command import EngineCommand
from headway.fleet.plan import dry_run, plan
from headway.fleet.plan.spec import Address, Machine

MACHINE = Machine(cores=(0, 1), gpus=(), memory_gib=16.0, cpu=True)
FILE = """\
[router]
strategy = "disaggregated"
[[pool]]
name = "p"
role = "prefill"
[[pool]]
name = "d"
role = "decode"
"""
SHOW = "import os, sys, json; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


def reported(env, *words, environ):
    """The report on a fleet of two whose engines' commands are SHOW with `words`."""
    fleet = plan.plan(settings.parse(FILE, starts=True), MACHINE)
    addresses = {
        engine.name: Address(host="127.0.0.1", port=8100 + 2 * n, side_port=8101 + 2 * n)
        for n, engine in enumerate(fleet.engines)
    }
    shown = EngineCommand(
        argv=(sys.executable, "-c", SHOW, *words),
        env=env,
        url=None,
        served_name="m",
        settings=None,
        drain_s=1,
    )
    commands = dict.fromkeys(addresses, shown)
    return dry_run.report(fleet, addresses, commands, shown, environ)


def printed(env, *words, environ):
    """The same in blocks for a shell."""
    return dry_run.text(reported(env, *words, environ=environ))


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [("--flag", "value"), ("--json", '{"a": "it\'s"}', "--x", ""), ("$HOME", "a b", "--", "*")],
)
def test_a_shell_runs_exactly_the_command_in_exactly_its_environment(words):
    environ = {**os.environ, "GONE": "1", "SAME": "x y"}
    env = {**os.environ, "SAME": "x y", "NEW": "it's $HOME", "EMPTY": ""}
    block = printed(env, *words, environ=environ).split("\n\n")[0]
    answer = subprocess.run(
        ["bash", "--norc", "-c", block], env=environ, capture_output=True, check=True, text=True
    )
    found, argv = json.loads(answer.stdout)
    assert argv == list(words)
    for noise in ("_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE"):
        found.pop(noise, None)
        env.pop(noise, None)
    assert found == env


def test_secrets_are_masked():
    env = {"HF_TOKEN": "s3cret", "HTTP_PROXY": "http://me:s3cret@proxy", "HF_HOME": "/models"}
    text = printed(env, "--api-key", "s3cret", "--x", "1", environ={})
    assert "s3cret" not in text
    for part in ("HF_TOKEN='***'", "HTTP_PROXY='http://me:***@proxy'", "HF_HOME=/models", "--x 1"):
        assert part in text
    assert "HF_TOKEN" not in printed(env, "--x", environ=env), "what is there anyway isn't told"


def test_programs_get_the_same_as_json_of_the_published_shape():
    jsonschema = pytest.importorskip("jsonschema")
    env = {"HF_TOKEN": "s3cret", "HF_HOME": "/models", "SAME": "1"}
    environ = {"SAME": "1", "GONE": "1"}
    report = reported(env, "--api-key", "s3cret", "--x", "1", environ=environ)
    text = reports.written(report)
    assert "s3cret" not in text
    told = json.loads(text)
    jsonschema.validate(told, json.loads(reports.schema_text(reports.DryRunReport)))
    assert from_json(reports.DryRunReport, told) == report
    assert [engine["name"] for engine in told["engines"]] == ["p-0", "d-0"]
    engine = told["engines"][1]
    assert (engine["url"], engine["side_port"]) == ("http://127.0.0.1:8102", 8103)
    process = engine["process"]
    assert process["argv"][3:] == ["--api-key", "***", "--x", "1"]
    assert process["set"] == {"HF_HOME": "/models", "HF_TOKEN": "***"}
    assert process["unset"] == ["GONE"]
    assert told["router"] == process
    assert settings.parse(told["router_settings"]).router.strategy == "disaggregated"


@pytest.mark.process
def test_every_engine_the_router_and_its_file_are_there():
    text = printed({}, "--x", environ={})
    for part in (
        "# p-0: http://127.0.0.1:8100, KV side channel on port 8101\n",
        "# d-0: http://127.0.0.1:8102, KV side channel on port 8103\n",
        "# router\n",
        '# engines = ["http://127.0.0.1:8100"]\n',
        '# engines = ["http://127.0.0.1:8102"]\n',
    ):
        assert part in text
    subprocess.run(["bash", "-n"], input=text, check=True, text=True)


@pytest.mark.process
def test_the_command_binds_the_engine_to_its_cores():
    core = max(os.sched_getaffinity(0))
    show = "import os; print(os.sched_getaffinity(0))"
    shown = EngineCommand(
        argv=(sys.executable, "-c", show),
        env=dict(os.environ),
        url=None,
        served_name="m",
        settings=None,
        drain_s=1,
        cores=(core,),
    )
    block = dry_run._block("engine", dry_run._process(shown, os.environ))
    answer = subprocess.run(
        ["bash", "--norc", "-c", block], capture_output=True, check=True, text=True
    )
    assert answer.stdout.strip() == f"{{{core}}}"
