"""Prompts counted with a tokenizer: exact, beside the event loop, bounded."""

import asyncio
import json

import pytest
from tests.router.asking import FREELY
from tests.router.fleet import Fleet, body_of, run

from headway import config
from headway.core.errors import SettingError
from headway.router.openai.prompt import TOKEN_BYTES
from headway.router.openai.request import parse
from headway.router.openai.token_counter import SAMPLE_BYTES, TokenCounter

tokenizers = pytest.importorskip("tokenizers", reason="comes with vLLM")


@pytest.fixture
def words(tmp_path):
    """A tokenizer for which every word is a token."""
    model = tokenizers.models.WordLevel({"?": 0}, "?")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    return file


def completion(prompt):
    fields = {"model": "m", "prompt": prompt}
    return parse("/v1/completions", json.dumps(fields).encode(), FREELY)


def counted(file, *prompts):
    """What the counter makes of them, all at once."""

    async def main():
        counter = TokenCounter(file)
        try:
            return await asyncio.gather(*(counter.measured(completion(p)) for p in prompts))
        finally:
            counter.close()

    return [found.prompt_bytes / TOKEN_BYTES for found in asyncio.run(main())]


def test_a_prompt_is_as_long_as_the_tokenizer_says(words):
    few, many = counted(words, "supercalifragilistic " * 50, "a b " * 50)
    assert few == pytest.approx(50, abs=2)
    assert many == pytest.approx(100, abs=2)


def test_token_ids_are_left_alone(words):
    assert counted(words, [1, 2, 3]) == [3]


def test_of_a_huge_prompt_a_part_is_counted(words):
    text = "word " * (SAMPLE_BYTES // 2)
    assert counted(words, text) == [pytest.approx(SAMPLE_BYTES // 2, rel=0.01)]


def test_however_many_come_at_once_each_is_measured(words):
    found = counted(words, *["one two three " * 20] * 200)
    assert len(found) == 200
    assert found[0] == pytest.approx(60, abs=2)
    assert all(value > 0 for value in found)


def test_routing_goes_by_the_count_from_the_first_request_on(words):
    """Bytes would say 2,500 tokens."""
    long_words = "x" * 99 + " "

    async def main():
        async with Fleet(engines=1, router={"tokenizer": str(words)}) as fleet:
            answer = await fleet.ask(body_of(text=long_words * 100))
            assert answer.status == 200
            (line,) = fleet.logged
            assert json.loads(line)["prompt_tokens"] == pytest.approx(100, rel=0.1)

    run(main)


def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(SettingError, match=r"router\.tokenizer: is .*tokenizer\.json"):
        TokenCounter(file)


def test_a_missing_file_is_told_with_its_line(tmp_path):
    file = tmp_path / "headway.toml"
    pool = '[[pool]]\nname = "a"\nengines = ["http://127.0.0.1:1"]\n'
    file.write_text(f'[router]\ntokenizer = "none.json"\n{pool}')
    with pytest.raises(config.ConfigError, match=r"headway\.toml:2: .*none\.json is not a file"):
        config.load(file)
