"""What people read: the explanation, the schema, the page; and flags in place of a file."""

import json
import pathlib
import re
import tomllib

import pytest

from headway import config
from headway.config.fleet import Fleet
from headway.config.model import Pool, Router
from headway.config.problems import dotted
from headway.config.reading import REQUIRED, UNSET, all_settings
from headway.core.routing.strategies import STRATEGY_BY_NAME

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/router-config.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
STARTED = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/fleet.md").read_text(), re.DOTALL)
ALL = [
    *all_settings(Fleet, ("fleet",)),
    *all_settings(Router, ("router",)),
    *all_settings(Pool, ("pool",)),
]
POOL = '[[pool]]\nname = "a"\nengines = ["http://127.0.0.1:8100"]\n'


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_page_are_right_and_raise_no_warning(example):
    parsed = config.parse(example)
    assert not config.warnings(parsed)
    assert config.explain(parsed)


@pytest.mark.parametrize("example", STARTED)
def test_examples_of_a_fleet_are_right_and_raise_no_warning(example):
    parsed = config.parse(example, starts=True)
    assert not config.warnings(parsed)
    assert " to start, " in config.explain(parsed)
    with pytest.raises(config.ConfigError, match="headway up"):
        config.parse(example)


def test_the_page_has_an_example_of_each_kind_of_pools():
    shown = {config.parse(example).router.routing for example in EXAMPLES}
    kinds = {(row.splits, row.by_length) for row in STRATEGY_BY_NAME.values()}
    assert {(row.splits, row.by_length) for row in shown} == kinds


@pytest.mark.parametrize(("path", "setting"), ALL)
def test_the_page_has_every_setting_with_its_default(path, setting):
    row = next(row for row in PAGE.splitlines() if row.startswith(f"| `{dotted(path)}` |"))
    _, _, default, meaning, _ = (cell.strip(" `") for cell in row.split("|"))
    assert meaning == setting.meaning
    if setting.default is REQUIRED:
        assert default == "required"
    elif setting.default in UNSET:
        assert not default
    else:
        assert tomllib.loads(f"x = {default}")["x"] == setting.default


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(config.schema())
    return jsonschema.Draft7Validator(config.schema())


@pytest.mark.parametrize("example", [*EXAMPLES, *STARTED])
def test_the_schema_takes_what_the_parser_takes(validator, example):
    assert validator.is_valid(tomllib.loads(example))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1\n" + POOL,
        POOL + "x = 1\n",
        "[router]\nport = true\n" + POOL,
        "[router]\nport = 65536\n" + POOL,
        "[router.slo]\nttft_s = 0\n" + POOL,
        '[router.tls]\ncert = "c"\n' + POOL,
        '[router.keys]\nhashes = ["abc"]\n' + POOL,
        '[router]\nstrategy = "best"\n' + POOL,
        POOL.replace("http://", ""),
        POOL.replace(":8100", ":8100/v1"),
        '[[pool]]\nname = "a"\nengines = []\n',
        '[[pool]]\nname = "a"\nreplicas = 0\n',
        '[[pool]]\nname = "a"\nmodel = ""\n',
        '[[pool]]\nname = "a"\nflags = [8]\n',
        '[[pool]]\nname = "a"\nenv.A = 1\n',
        '[[pool]]\nname = "a"\nenv."A B" = "1"\n',
        '[[pool]]\nname = "a"\nbatching.policy = "best"\n',
        '[[pool]]\nname = "a"\nbatching.x = 1\n',
        "[fleet]\nhang_s = 0\n" + POOL,
        '[fleet]\nname = "../a"\n' + POOL,
    ],
)
def test_the_schema_refuses_what_the_parser_refuses(validator, text):
    assert not validator.is_valid(tomllib.loads(text))
    with pytest.raises(config.ConfigError):
        config.parse(text, starts=True)


def test_the_schema_describes_every_setting():
    assert json.dumps(config.schema()).count('"description"') >= len(ALL)


def test_the_explanation_says_where_each_value_is_from():
    told = config.explain(config.parse("[router]\nport = 9\nslo.tpot_s = 0.2\n" + POOL))
    assert re.search(r"^  port = 9 +line 2  ", told, re.MULTILINE)
    assert re.search(r"^  tpot_s = 0\.2 +line 3  ", told, re.MULTILINE)
    assert re.search(r"^  ttft_s = 1 +default  ", told, re.MULTILINE)
    assert re.search(r'^  engines = \["http://127\.0\.0\.1:8100"\] +line 6  ', told, re.MULTILINE)


def test_the_explanation_has_what_matters_for_each_pool():
    started = '[[pool]]\nname = "b"\nreplicas = 2\n[pool.env]\nTOKEN = "hunter2"\n'
    told = config.explain(config.parse(POOL + started, starts=True))
    assert re.search(r"^  replicas = 2 +line 6  ", told, re.MULTILINE)
    assert re.search(r"^  env = \{TOKEN = …\} +line 7  ", told, re.MULTILINE)
    assert "hunter2" not in told
    assert "pool b, 2 engines to start, the bundled model: all prompts" in told
    for title in ("[fleet]", "[pool.batching]", "  engines = "):
        assert told.count(title) == 1
    assert not re.search(r"\[fleet\]|replicas|batching", config.explain(config.parse(POOL)))


def test_the_explanation_of_a_pool_says_what_it_does():
    for example in EXAMPLES:
        parsed = config.parse(example)
        told = config.explain(parsed)
        assert all(f"pool {pool.name}, " in told for pool in parsed.pools)
        assert parsed.router.strategy in told


def test_flags_make_the_configuration_that_a_file_would():
    flags = config.from_flags(
        engines=["http://127.0.0.1:1"], router={"port": 9, "slo": {"ttft_s": 2}}
    )
    text = '[router]\nport = 9\nslo.ttft_s = 2\n[[pool]]\nname="engines"\n'
    assert flags == config.parse(text + 'engines = ["http://127.0.0.1:1"]\n')
    assert re.search(r"ttft_s = 2 +--slo-ttft-s ", config.explain(flags))


def test_prefill_and_decode_flags_disaggregate():
    flags = config.from_flags(prefill=["http://h:1"], decode=["http://h:2", "http://h:3"])
    assert flags.router.strategy == "disaggregated"
    assert [(pool.role, len(pool.engines)) for pool in flags.pools] == [
        ("prefill", 1),
        ("decode", 2),
    ]


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ({}, ["--engine"]),
        ({"prefill": ["http://h:1"]}, ["--decode"]),
        ({"decode": ["http://h:1"]}, ["--prefill"]),
        ({"engines": ["h:1", "http://h:1", "http://h:1"]}, ["--engine"]),
        ({"prefill": ["h"], "decode": ["d"]}, ["--prefill", "--decode"]),
        ({"engines": ["http://h:1"], "router": {"slo": {"ttft_s": 0}}}, ["--slo-ttft-s"]),
        ({"engines": ["http://h:1"], "router": {"keys": {"file": "/absent"}}}, ["--keys-file"]),
    ],
)
def test_problems_with_flags_name_the_flag(flags, keys):
    with pytest.raises(config.ConfigError) as caught:
        config.from_flags(**flags)
    assert [problem.key for problem in caught.value.problems] == keys
    assert "None" not in str(caught.value)
