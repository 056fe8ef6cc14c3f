"""`[router.clients.NAME]`: what a file may say, and what it means."""

import math
import tomllib

import pytest

from headway import config
from headway.core.client_range import MOST_PRIORITY, ClientRange

POOL = '[[pool]]\nname = "a"\nengines = ["http://127.0.0.1:8100"]\n'
KEYS = f'[router.keys]\nhashes = ["alice:{"0" * 64}", "team.a:{"1" * 64}"]\n'


def parsed(text):
    return config.parse(text + POOL, "h.toml")


def problems(text):
    with pytest.raises(config.ConfigError) as caught:
        parsed(text)
    return [(problem.key, problem.line, problem.problem) for problem in caught.value.problems]


def test_without_a_section_nobody_gets_ahead_of_others():
    found = parsed("[router.slo]\nttft_s = 2\ntpot_s = 0.5\n").router.client_ranges
    usual = ClientRange("*", (0, MOST_PRIORITY), (2.0, math.inf), (0.5, math.inf))
    assert found == {"*": usual}


def test_a_section_stands_alone():
    text = '[router.clients."*"]\npriority = [3, 9]\nbeyond = "refuse"\n'
    text += "[router.clients.alice]\ndefault_priority = 4\nttft_slo_s = [1, 1]\n"
    text += '[router.clients."team.a"]\npriority = [-9, -3]\n'
    found = parsed(text).router.client_ranges
    assert [(r.priority, r.default_priority, r.refuses) for r in found.values()] == [
        ((0, MOST_PRIORITY), 4, False),
        ((-9, -3), -3, False),
        ((3, 9), 3, True),
    ]
    assert found["alice"].ttft_slo_s == (1.0, 1.0)


@pytest.mark.parametrize(
    ("line", "key", "said"),
    [
        ("priority = [1]", "priority", "has 1 values; use two"),
        ("priority = [1, 2, 3]", "priority", "has 3 values; use two"),
        ("priority = [2, 1]", "priority", "starts at 2, above its end"),
        ("priority = 3", "priority", "is not a list; use [0, 10]"),
        ("priority = [0, 1.5]", "priority[1]", "is not a whole number"),
        ("ttft_slo_s = [0, 1]", "ttft_slo_s[0]", "out of range"),
        ("tpot_slo_s = [1, inf]", "tpot_slo_s[1]", "out of range"),
        (
            "priority = [1, 2]\ndefault_priority = 3",
            "default_priority",
            "use a whole number from 1",
        ),
        ("default_priority = -1", "default_priority", "use a whole number 0 or more"),
        ('beyond = "drop"', "beyond", 'is not one of: "clamp", "refuse"'),
        ("priorty = [1, 2]", "priorty", 'did you mean "priority"?'),
    ],
)
def test_what_is_wrong_is_told_with_its_line(line, key, said):
    [(found, number, problem)] = problems(f"[router.clients.alice]\n{line}\n")
    assert (found, number) == (f"router.clients.alice.{key}", 1 + len(line.splitlines()))
    assert said in problem


def test_names_are_those_that_keys_may_have():
    [(key, line, said)] = problems('[router.clients."a b"]\n')
    assert (key, line) == ('router.clients."a b"', 1)
    assert "name of a client" in said
    [(key, _, said)] = problems("router.clients = 1\n")
    assert (key, said) == ("router.clients", "a number is not a table; use [router.clients.NAME]")
    [(key, _, said)] = problems("router.clients.alice = 1\n")
    assert said == "a number is not a table; use [router.clients.alice]"


def test_a_section_without_a_key_is_warned_of_and_no_error():
    """Who takes a key away must not have to take the section too."""
    text = '[router.clients."*"]\n[router.clients.bob]\n[router.clients."team.a"]\n'
    [warning] = config.warnings(parsed(text + KEYS))
    assert warning == "router.clients.bob has no effect: no key has this name"
    assert len(config.warnings(parsed(text))) == 2
    assert not config.warnings(parsed(text + '[router.keys]\nfile = "unread"\n'))


def test_the_ranges_are_told_in_words():
    text = '[router.clients.alice]\npriority = [-5, 5]\ntpot_slo_s = [0.02, 1]\nbeyond = "refuse"\n'
    told = config.explain(parsed(text + KEYS))
    assert (
        "alice may ask for priority from -5 to 5 (default 0), TTFT limits 1 s or more and "
        "TPOT limits from 0.02 to 1 s; more is refused\n"
        "other clients may ask for priority 0 or more (default 0), TTFT limits 1 s or more and "
        "TPOT limits 0.15 s or more; more is clamped\n"
    ) in told
    assert "[router.clients.alice]\n" in told
    assert "  priority = [-5, 5] " in told
    assert "\nclients may ask for priority 0 or more (default 0)" in config.explain(parsed(""))


def test_the_schema_takes_what_the_parser_takes():
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft7Validator(config.schema())
    right = '[router.clients."*"]\npriority = [-5, 5]\n'
    assert validator.is_valid(tomllib.loads(right + POOL))
    for wrong in ('[router.clients."a b"]\n', "[router.clients.a]\npriority = [1]\n"):
        assert not validator.is_valid(tomllib.loads(wrong + POOL))
