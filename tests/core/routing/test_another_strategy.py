"""Another strategy is a file and a row: in a copy of the package it gets both, and works."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headway

pytest.importorskip("uvloop")

PACKAGE = Path(headway.__file__).parent
SCRIPTS = PACKAGE.parents[1] / "scripts"
MEANING = "each request goes whole to the last engine"
FILE = '''"""Last come, all served."""

from headway.core.routing.places import refuse, serving, whole
from headway.core.routing.route import Reason, Route
from headway.core.routing.views import PoolView, RequestView


def newest(request: RequestView, pools: tuple[PoolView, ...], now_s: float, draw: float) -> Route:
    """The last engine that is ready."""
    ready = [engine for _, engine in serving(pools) if engine.ready]
    return whole(ready[-1], request, Reason.LEAST_WORK) if ready else refuse([], request)
'''
ROWS_END = ")\nSTRATEGY_BY_NAME"
ROW = f'    Strategy(name="newest", route=newest, meaning="{MEANING}"),\n'
IMPORT = "from headway.core.routing.strategies.newest import newest\n"

USER = """
import contextlib, io, json, sys
from headway import cli, config
from headway.core.reliability.checks import Checks, HealthState
from headway.core.routing.views import RequestView
from headway.fleet.plan import template
from headway.fleet.plan.spec import Machine
from headway.router.state.service import Service

def told(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main(list(words))
    return " ".join(out.getvalue().split())

def refused(strategy):
    try:
        parsed(strategy)
    except config.ConfigError as error:
        return str(error)

def parsed(strategy):
    urls = '"http://127.0.0.1:1", "http://127.0.0.1:2"'
    return config.parse(
        f'router.strategy = "{strategy}"\\n[[pool]]\\nname = "a"\\nengines = [{urls}]'
    )

def routed():
    service = Service(parsed("newest"), say=print, now=lambda: 0.0)
    for engine in service.engines.values():
        engine.health.see(Checks(HealthState.WELL))
    request = RequestView(
        id="r", prompt_tokens=9, max_tokens=None, arrival_s=0.0, ttft_limit_s=1.0
    )
    return service.route(request).engine

def written():
    machine = Machine(cores=(0, 1), gpus=(), memory_gib=9.0, cpu=True)
    text = template.text(machine, strategy="newest")
    return config.parse(text, starts=True).router.strategy

sys.path.append(sys.argv[1])
import generate
print(json.dumps({
    "engine": routed(),
    "explained": config.explain(parsed("newest")),
    "refused": refused("newesd"),
    "help of route": told("route", "--help"),
    "help of init": told("init", "--help"),
    "written": written(),
    "generated": {path.name: text for path, text in generate.generated().items()},
}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a package with another file and another row says and does."""
    source = tmp_path_factory.mktemp("another")
    copy = source / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    home = copy / "core" / "routing" / "strategies"
    (home / "newest.py").write_text(FILE, "utf-8")
    rows = home / "__init__.py"
    text = rows.read_text("utf-8")
    after = "from headway.core.routing.views import"
    assert (text.count(ROWS_END), text.count(after)) == (1, 1)
    rows.write_text(text.replace(ROWS_END, ROW + ROWS_END).replace(after, IMPORT + after), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", USER, SCRIPTS],
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


pytestmark = pytest.mark.process


def test_the_router_asks_it(seen):
    assert seen["engine"] == "a/127.0.0.1:2"


def test_the_file_may_name_it_and_is_explained(seen):
    assert f"\nnewest: {MEANING}\n" in seen["explained"]


def test_an_error_names_it(seen):
    assert '"newest"' in seen["refused"]


@pytest.mark.parametrize("command", ["route", "init"])
def test_help_says_what_it_does(seen, command):
    assert f"newest: {MEANING}" in seen[f"help of {command}"]


def test_a_file_is_written_for_it(seen):
    assert seen["written"] == "newest"


@pytest.mark.parametrize("name", ["headway.schema.json", "router-config.md"])
def test_schema_and_documentation_follow(seen, name):
    assert f"newest: {MEANING}" in seen["generated"][name]
