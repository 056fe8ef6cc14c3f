import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import config
from headway.core.errors import SettingError

POOL = '[[pool]]\nname = "a"\nengines = ["http://127.0.0.1:8100"]\n'
KEY, OTHER = "a-key-of-alice-0123456789", "a-key-of-bob-0123456789"


def ring(*lines):
    hashes = ", ".join(f'"{line}"' for line in lines)
    return config.parse(f"[router.keys]\nhashes = [{hashes}]\n{POOL}").keys


def write(folder, keys, more=""):
    (folder / "keys.txt").write_text(keys)
    path = folder / "headway.toml"
    path.write_text(f'{POOL}[router.keys]\nfile = "keys.txt"\n{more}')
    return path


def test_a_key_has_its_name_and_no_other_key_has():
    keys = ring(f"alice:{config.hash_key(KEY)}", f"bob:{config.hash_key(OTHER)}")
    assert (keys.check(KEY), keys.check(OTHER)) == ("alice", "bob")
    for wrong in ("", KEY[:-1], KEY + " ", KEY.upper(), config.hash_key(KEY), "\ud800", "ä"):
        assert keys.check(wrong) is None
    assert keys.names == ("alice", "bob")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(min_size=20, max_size=30), unique=True, min_size=2, max_size=5))
def test_exactly_the_keys_whose_hashes_are_kept_are_taken(keys):
    kept = ring(*(f"n{i}:{config.hash_key(key)}" for i, key in enumerate(keys[1:])))
    assert [kept.check(key) for key in keys] == [None, *(f"n{i}" for i in range(len(keys) - 1))]


def test_a_name_may_have_two_keys_while_one_replaces_the_other():
    keys = ring(f"alice:{config.hash_key(KEY)}", f"alice:{config.hash_key(OTHER)}")
    assert {keys.check(KEY), keys.check(OTHER)} == {"alice"}


def test_no_keys_means_that_none_are_asked_for():
    assert not config.parse(POOL).keys


def test_a_key_file_that_was_not_opened_lets_nobody_in():
    keys = config.parse(f'[router.keys]\nfile = "keys.txt"\n{POOL}').keys
    assert keys
    assert keys.check(KEY) is None


def test_rings_with_the_same_keys_are_equal():
    line = f"alice:{config.hash_key(KEY)}"
    assert ring(line) == ring(line)
    assert hash(ring(line)) == hash(ring(line))
    assert ring(line) != ring(line.replace("alice", "al"))
    assert copy.copy(ring(line)) == ring(line)


def test_a_short_key_is_not_hashed():
    with pytest.raises(SettingError, match="use 20 or more"):
        config.hash_key("hunter2")


def test_keys_come_from_a_file_and_from_the_configuration(tmp_path):
    text = f"\ufeff# ours\n\n  alice:{config.hash_key(KEY)}  \n"
    path = write(tmp_path, text, f'hashes = ["bob:{config.hash_key(OTHER)}"]\n')
    loaded = config.load(path)
    assert loaded.keys.names == ("alice", "bob")
    assert loaded.files == (path, tmp_path / "keys.txt")


def test_wrong_lines_of_a_key_file_are_named_by_its_own_lines(tmp_path):
    path = write(tmp_path, f"# ours\n{KEY}\nalice:{config.hash_key(KEY)}\nbob:00\n", "x = 1\n")
    with pytest.raises(config.ConfigError) as caught:
        config.load(path)
    places = [(p.file.rpartition("/")[2], p.line) for p in caught.value.problems]
    assert places == [("headway.toml", 6), ("keys.txt", 2), ("keys.txt", 4)]


@pytest.mark.parametrize("text", ["", "# none yet\n"])
def test_a_key_file_without_keys_does_not_open_the_router(tmp_path, text):
    with pytest.raises(config.ConfigError, match="has no keys"):
        config.load(write(tmp_path, text))


def test_a_key_file_that_is_absent_does_not_open_the_router(tmp_path):
    path = write(tmp_path, "")
    (tmp_path / "keys.txt").unlink()
    with pytest.raises(config.ConfigError, match=r"headway\.toml:5: router\.keys\.file"):
        config.load(path)


def test_the_same_key_twice_is_an_error():
    digest = config.hash_key(KEY)
    with pytest.raises(config.ConfigError, match="more than once: alice, bob"):
        ring(f"alice:{digest}", f"bob:{digest}")


@pytest.mark.parametrize(
    "line",
    [
        f'hashes = ["{KEY}"]',
        f'hashes = ["alice:{KEY}"]',
        f'hashes = "{KEY}"',
        f'engine_key_env = "{KEY}"',
        'engine_key_env = "sk_lower_case_0123"',
        f'key = "{KEY}"',
    ],
)
def test_a_key_in_the_wrong_place_is_not_repeated(line):
    with pytest.raises(config.ConfigError) as caught:
        config.parse(f"[router.keys]\n{line}\n{POOL}")
    assert KEY not in str(caught.value)
    assert "sk_lower" not in str(caught.value)


def test_hashes_are_not_shown():
    digest = config.hash_key(KEY)
    parsed = config.parse(f'[router.keys]\nhashes = ["alice:{digest}"]\n{POOL}')
    assert "alice" in config.explain(parsed)
    assert digest not in config.explain(parsed)
    assert digest not in repr(parsed.keys)


def test_the_key_for_engines_comes_from_the_environment():
    assert config.engine_key(None, {}) is None
    assert config.engine_key("K", {"K": "secret"}) == "secret"
    for environ in ({}, {"K": ""}, {"K": "a\r\nX: y"}, {"K": "ä"}):
        with pytest.raises(SettingError, match="variable K"):
            config.engine_key("K", environ)
