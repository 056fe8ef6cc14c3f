"""The YAML written here means what PyYAML reads."""

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from headway.fleet.kubernetes import block_yaml

SCALARS = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=30), inner, max_size=4)
    ),
    max_leaves=20,
)
TRICKY = [
    "yes", "No", "null", "~", "1", "1.0", "0x1f", "1e3", "12:30:45", "2001-12-14", ".inf", "-",
    "--", "-a", "---", "...", "a: b", "a #b", "#", "a:", ":a", "- a", "? a", "&a", "*a", "!a", "%a",
    "@a", "`a", "{a}",
    "[a]", '"', "'", "\\", " a", "a ", "a\tb", "\x7f", "\x85", "\u2028", "\ufeff",
    "\x00", "😀", "=", "<<", "_", "1_000", "a\n", "\na", "a\n\nb", "a\n\n", " a\nb", "a\n b",
    "a\n \nb", "a\r\n", "a\n\tb", 'key = "x"\n[a]\n', "http://a:80/b", "vllm/openai:v0.32.0",
    "--port", "|", ">",
]  # fmt: skip


@given(VALUES)
@example([[[]], {}, {"a": {}}, [{"a": [1, {"b": None}]}], [["x\ny"]]])
def test_what_is_written_is_read_back(value):
    assert yaml.safe_load(block_yaml.text({"a": value})) == {"a": value}


@pytest.mark.parametrize("word", TRICKY)
def test_text_stays_text(word):
    value = {word: word, f"{word}.": [word, [word, word], {"a": {word: word}}]}
    assert yaml.safe_load(block_yaml.text(value)) == value


@given(st.text(alphabet="ab01 -:#|>\n\t\"'{}[],&*!%@`~.=\r\\", max_size=20))
def test_text_of_yaml_s_own_characters_stays_text(word):
    value = {word: word, f"{word}.": [word, [word, word], {"a": {word: word}}]}
    assert yaml.safe_load(block_yaml.text(value)) == value


def test_several_lines_are_a_block_that_people_read():
    assert block_yaml.text({"a": {"f.toml": 'x = 1\n\n[b]\ny = "2"\n'}}) == (
        'a:\n  f.toml: |\n    x = 1\n\n    [b]\n    y = "2"\n'
    )


def test_documents_have_a_comment_each():
    written = block_yaml.documents([("the first", {"a": 1}), ("the second", {"b": ["c", "d"]})])
    assert written == "---\n# the first\na: 1\n---\n# the second\nb:\n- c\n- d\n"


def test_what_has_no_place_in_a_manifest_is_refused():
    with pytest.raises(TypeError, match="float has no place"):
        block_yaml.text({"a": [1.5]})
