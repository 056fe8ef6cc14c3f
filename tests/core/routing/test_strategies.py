"""A strategy is one function and one row: all else goes by the rows."""

import ast
from pathlib import Path

import pytest

import headway
from headway import config
from headway.config.schema import schema
from headway.core.routing.strategies import DEFAULT_STRATEGY, SPLIT_STRATEGY, STRATEGY_BY_NAME

SOURCES = Path(headway.__file__).parent
HOME = SOURCES / "core" / "routing" / "strategies"


def strings(file):
    """Constants of the code, without documentation."""
    tree = ast.parse(file.read_text("utf-8"))
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in documentation:
            yield node.value


def test_no_other_code_knows_a_strategy_by_its_name():
    knowing = {
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.py")
        # What is measured of each is the benchmarks' own to say.
        if not {HOME, SOURCES / "bench"} & set(file.parents)
        and any(name in text for text in strings(file) for name in STRATEGY_BY_NAME)
    }
    assert knowing == set()


@pytest.mark.parametrize("row", STRATEGY_BY_NAME.values(), ids=STRATEGY_BY_NAME)
def test_each_has_a_file_with_its_function(row):
    assert row.route.__module__ == f"headway.core.routing.strategies.{row.name}"
    assert row.route.__name__ == row.name


def test_the_schema_names_them_all():
    router = schema()["properties"]["router"]["properties"]
    assert router["strategy"]["enum"] == list(STRATEGY_BY_NAME)


def test_the_explanation_says_what_the_chosen_one_does():
    parsed = config.parse('[[pool]]\nname = "a"\nengines = ["http://127.0.0.1:1"]')
    meaning = STRATEGY_BY_NAME[DEFAULT_STRATEGY].meaning
    assert f"\n{DEFAULT_STRATEGY}: {meaning}\n" in config.explain(parsed)


def test_pools_of_two_roles_are_for_the_one_that_splits():
    assert STRATEGY_BY_NAME[SPLIT_STRATEGY].splits
