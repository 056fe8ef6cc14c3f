"""A model that a user names: what can be known to be wrong with it before anything starts."""

import json
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.models import named

ONLINE = {}


def weights(path, *, tensor=b"1234"):
    """A safetensors file with one tensor."""
    offsets = [0, len(tensor)]
    entry = {"dtype": "U8", "shape": offsets[1:], "data_offsets": offsets}
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + tensor)


@pytest.fixture
def model(tmp_path):
    """A directory with a whole model."""
    directory = tmp_path / "models" / "llama-8b"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    weights(directory / "model.safetensors")
    return directory


def told(model, environ=ONLINE, flags=()):
    return named.problem(str(model), environ, flags)


def test_a_whole_model_is_right(model):
    assert told(model) is None


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "gpt2", "s3://bucket/model", "org/x:Q4_K_M"])
def test_what_only_a_hub_can_know_may_be_right(name):
    assert told(name) is None


@pytest.mark.parametrize("name", ["./nope", "/no/such/model", "../nope", "a/b/c", "."])
def test_a_path_without_a_model_is_wrong_and_what_would_be_right_is_told(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = told(name)
    assert name in found
    assert "a model is a directory with config.json and weights, or a name on a hub" in found


def test_a_misspelt_directory_is_told_with_the_one_that_is_there(model):
    assert f"did you mean {model}?" in told(model.with_name("lama-8b"))


def test_a_home_directory_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert "write /home/me/models/x" in told("~/models/x")


@pytest.mark.parametrize("name", ["Qwen/Qwen3 8B", "", "org/", "what?", "x" * 5000 + "/", "a\0b"])
def test_what_is_neither_path_nor_name_is_wrong(name):
    assert "a name on a hub" in told(name)


@given(st.sampled_from(["", "/", "./", "~", "a/b/"]), st.text(max_size=20))
def test_any_name_is_judged(start, rest):
    found = told(start + rest)
    assert found is None or "a name on a hub" in found or "config.json" in found


def test_a_file_is_no_model(model):
    assert "is a file" in told(model / "config.json")


def test_a_directory_above_the_model_names_it(model):
    """As in a hub's cache: models--ORG--NAME/snapshots/COMMIT."""
    assert f"{model} has one: name that" in told(model.parent)
    assert f"{model} has one: name that" in told(model.parent.parent)


@pytest.mark.parametrize("text", ["{", "[]", "", "\ud800".encode("utf-8", "surrogatepass")])
def test_a_broken_config_is_told(model, text):
    (model / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert str(model / "config.json") in told(model)


def test_missing_weights_are_told(model):
    (model / "model.safetensors").unlink()
    assert "has no weights" in told(model)
    assert told(model, flags=["--load-format"]) is None


def test_a_missing_part_of_the_weights_is_told(model):
    parts = {"a": "model.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    assert "2 files are missing, model-2.safetensors among them" in told(model)
    (model / "model.safetensors.index.json").write_text("[]")
    assert told(model) is None


@given(st.data())
def test_weights_that_broke_off_anywhere_are_told(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text("{}")
    path = directory / "model.safetensors"
    weights(path, tensor=bytes(data.draw(st.integers(1, 40))))
    assert told(directory) is None
    os.truncate(path, data.draw(st.integers(0, path.stat().st_size - 1)))
    assert "isn't complete" in told(directory)


def test_what_safetensors_takes_is_right(tmp_path):
    numpy = pytest.importorskip("numpy")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": numpy.zeros((3, 5)), "b": numpy.zeros(0)}, tmp_path / "model.safetensors")
    assert told(tmp_path) is None


HEADERS = st.dictionaries(
    st.sampled_from(["a", "b", "__metadata__"]),
    st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.just("U8"),
            "shape": st.just([2]),
            "data_offsets": st.lists(st.integers(0, 4), max_size=2) | st.text(max_size=1),
        },
    ),
)


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda header, rest: struct.pack("<Q", len(header)) + header + rest,
        HEADERS.map(lambda header: json.dumps(header).encode()),
        st.binary(max_size=4),
    )
)
def test_any_bytes_as_weights_are_judged_and_none_refused_that_safetensors_takes(
    tmp_path_factory, content
):
    safetensors = pytest.importorskip("safetensors")
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(content)
    found = told(directory)
    try:
        safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return
    assert found is None


def test_a_pointer_of_git_lfs_is_no_weights(model):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (model / "model.safetensors").write_text(text)
    assert "git lfs pull" in told(model)


@pytest.mark.parametrize("offline", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_where_the_hub_may_not_be_asked_its_cache_answers(tmp_path, offline):
    snapshot = tmp_path / "hub/models--Qwen--Qwen3-8B/snapshots/0"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    environ = {offline: "1", "HF_HOME": str(tmp_path)}
    assert told("Qwen/Qwen3-8B", environ) is None
    found = told("Qwen/Qwen3-8b", environ)
    assert f"isn't in the hub's cache {tmp_path}/hub" in found
    assert "did you mean Qwen/Qwen3-8B?" in found
    assert told("Qwen/Qwen3-8b", {**environ, offline: "0"}) is None
    assert told("Qwen/Qwen3-8b", environ, ["--download-dir"]) is None
    assert told("Qwen/Qwen3-8b", {**environ, "VLLM_USE_MODELSCOPE": "True"}) is None
    assert told("Qwen/Qwen3-8B", {offline: "1", "HF_HUB_CACHE": str(tmp_path / "hub")}) is None
    assert told("org/x", {offline: "1", "XDG_CACHE_HOME": str(tmp_path)}) is not None
