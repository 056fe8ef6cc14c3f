"""Answers are whole words, and the same ones wherever and however often they are written."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.emulate.answers import Writing, words, writing
from headway.emulate.grammar import LONG, Grammar
from headway.models import known

WORDS = [5, 9, 11, 400]


def sampling(**given):
    values = {
        "temperature": 0.0,
        "seed": None,
        "max_tokens": 10,
        "min_tokens": 0,
        "ignore_eos": False,
        "eos_token_id": 1,
        "allowed_token_ids": None,
        "num_logprobs": None,
    }
    return SimpleNamespace(**values | given)


def written(name="r", prompt=(1, 2, 3), *, context_tokens=1000, **given):
    return writing(name, prompt, sampling(**given), context_tokens=context_tokens, answer_tokens=20)


def test_greedy_answers_depend_on_the_prompt_alone():
    assert written("a") == written("b") == written("a", seed=4)
    assert written() != written(prompt=(1, 2, 4))


def test_sampled_ones_depend_on_the_seed_and_without_one_on_the_request():
    assert written("a", temperature=1.0, seed=4) == written("b", temperature=1.0, seed=4)
    assert written("a", temperature=1.0, seed=4) != written("a", temperature=1.0, seed=5)
    assert written("a", temperature=1.0) != written("b", temperature=1.0)
    assert written("a", temperature=1.0) == written("a", temperature=1.0)


@given(st.integers(), st.integers(0, 10**6))
def test_every_token_is_a_word(seed, position):
    assert Writing(seed, 0).token(position, WORDS) in WORDS
    assert Writing(seed, 0, allowed=(7, 8)).token(position, WORDS) in {7, 8}


def test_all_words_are_used():
    assert {Writing(3, 0).token(position, WORDS) for position in range(100)} == set(WORDS)


@pytest.mark.parametrize(
    ("given", "ends_at"),
    [
        ({"max_tokens": 10}, None),
        ({"max_tokens": 996}, None),
        ({"max_tokens": 997}, 23),  # all that is left of the context: nobody asked for a length
        ({"max_tokens": 997, "min_tokens": 50}, 53),
        ({"max_tokens": 997, "ignore_eos": True}, None),
        ({"max_tokens": 997, "eos_token_id": None}, None),
    ],
)
def test_an_answer_ends_by_itself_only_where_no_length_was_asked_for(given, ends_at):
    found = written(**given)
    assert found.ends_at == ends_at
    if ends_at is not None:
        assert found.token(ends_at - 1, WORDS) in WORDS
        assert found.token(ends_at, WORDS) == 1


def test_words_are_those_that_begin_with_a_space():
    vocabulary = {"Ġthe": 0, "▁and": 1, "ing": 2, "Ġ": 3, "<s>": 4, "ĠThe": 5, "Ġof": 6, "Ġat": 99}
    assert words(vocabulary, 50, [6]) == [0, 1]
    assert words({"x": 3, "<s>": 4}, 50, [4]) == [3]
    assert words({}, 4, [2]) == [0, 1, 3]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from tokenizers import Tokenizer

    directory = tmp_path_factory.mktemp("tokenizer")
    known.write_tokenizer(directory)
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def test_a_well_known_models_words_are_detokenised_one_by_one(tokenizer):
    """The detokeniser holds nothing back, so every token is a chunk of a stream."""
    found = words(tokenizer.get_vocab(), 128_256, [0, 1])
    assert len(found) > 1000
    texts = [tokenizer.decode([word]) for word in found]
    assert all(text.isascii() and text[0] == " " and text[1:].isalpha() for text in texts)


@given(text=st.text(max_size=60))
def test_any_text_goes_through_its_tokenizer_unchanged(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_prompts_made_of_its_words_have_as_many_tokens(tokenizer):
    found = words(tokenizer.get_vocab(), 128_256, [0, 1])[:500]
    assert tokenizer.encode(tokenizer.decode(found)).ids == found


def mask(size, allowed):
    bits = np.zeros(-(-size // 32) * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


VOCABULARY = {"<end>": 1, '"': 2, "}": 3, "]": 4, "Ġ": 5, "ĠĊ": 6, "Ġthe": 7, "Ġof": 8, "{": 9}
GRAMMAR = Grammar([7, 8], VOCABULARY, 40)


@given(
    allowed=st.sets(st.integers(0, 39), min_size=1),
    position=st.integers(0, 100),
    seed=st.integers(),
)
def test_only_what_the_grammar_allows_is_written(allowed, position, seed):
    how = Writing(seed, 0, end_token=1)
    token = GRAMMAR.token(how, position, mask(40, allowed))
    assert token in allowed
    if 1 in allowed:
        assert token == 1, "it ends as soon as it may"
    elif position >= LONG and allowed & {2, 3, 4}:
        assert token in {2, 3, 4}, "what is long comes to its end"
    elif allowed - {5, 6}:
        assert token not in {5, 6}, "blanks could go on for ever"
