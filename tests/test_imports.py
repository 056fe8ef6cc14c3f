"""No part of the package needs another that needs it, not even for its types."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import headway

ROOT = Path(headway.__file__).parent


def modules():
    for file in ROOT.rglob("*.py"):
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imported(file, known):
    """Modules that a file names, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def test_there_is_no_circle():
    files = dict(modules())
    graph = {name: set(imported(file, files)) - {name} for name, file in files.items()}
    assert len(graph) > 150
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
