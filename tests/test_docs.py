"""What the documentation says is there: its links, every metric, the stored results."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway.router.state.receipt import Receipt, log_line

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]
METRICS = (ROOT / "docs/metrics.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/README.md").read_text()
    pages = [page.name for page in ROOT.glob("docs/*.md") if page.name != "README.md"]
    assert [name for name in pages if f"({name})" not in index] == []


def constructed(path, names):
    """The first argument of every call of these names in a module, if it is a plain text."""
    for node in ast.walk(ast.parse(path.read_text())):
        called = node.func.id if isinstance(node, ast.Call) and hasattr(node.func, "id") else ""
        if called in names and node.args and isinstance(node.args[0], ast.Constant):
            yield called, node.args[0].value


def metrics():
    modules = [*ROOT.glob("src/headway/engine/*.py"), *ROOT.glob("src/headway/emulate/*.py")]
    for path in modules:
        for called, name in constructed(path, {"Counter", "Gauge", "Histogram"}):
            yield name + "_total" * (called == "Counter")
    path = ROOT / "src/headway/router/state/metrics.py"
    for called, name in constructed(path, {"counter", "times", "gauge"}):
        yield f"headway:router_{name}" + "_total" * (called == "counter")


def test_every_metric_is_told_once():
    names = list(metrics())
    assert len(names) > 20
    rows = [line.split(" | ")[0] for line in METRICS.splitlines() if line.startswith("| `")]
    told = re.findall(r"`([a-z_:]+)", " ".join(rows))
    assert [name for name in names if told.count(name) != 1] == []
    ours = {name for name in told if name.startswith("headway:")}
    assert ours == set(names)


def test_every_field_of_the_request_log_is_told():
    full = Receipt("a", "b", "c", "d", ("e",), 1.0, 1.0, 1.0, 1.0)
    record = ast.parse((ROOT / "src/headway/router/serve/record.py").read_text())
    given = {
        keyword.arg
        for node in ast.walk(record)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "log_line"
        for keyword in node.keywords
    }
    table = (ROOT / "docs/scripts.md").read_text().partition("| field | meaning |")[2]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == json.loads(log_line(full)).keys() | given


@pytest.mark.process
def test_the_results_page_is_what_the_stored_results_say():
    script = [sys.executable, str(ROOT / "benchmarks/summary.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
