"""A large body read beside the event loop says what it would say on it."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.router.asking import FREELY

from headway.bench.router.shapes import CHAT, COMPLETIONS, GENERATING
from headway.core.routing.prefixes import PrefixMap
from headway.router.openai import ENDPOINTS, BodyError, Settled, decode_body, parse, prefill_body
from headway.router.openai.answers import AnswerError, strip_answer
from headway.router.openai.asked import objects
from headway.router.openai.jobs import (
    LIGHT_BYTES,
    LIGHT_VALUES,
    clean_answer,
    is_light,
    large_request,
    passed_request,
    prefill_answer,
)
from headway.router.wire.pieces import JOINED_BYTES, Pieces, joined

PARAMS = {"do_remote_prefill": True, "remote_block_ids": [1, 2]}
FIELDS = (
    *("model", "messages", "prompt", "input", "stream", "n", "max_tokens", "tools", "tool_choice"),
    *("kv_transfer_params", "vllm_xargs", "truncate_prompt_tokens", "prompt_logprobs", "x"),
)

text = st.text(max_size=9)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
turns = st.lists(st.fixed_dictionaries({"role": text, "content": values}) | values, max_size=3)
bodies = st.dictionaries(st.sampled_from(FIELDS), values | turns).map(
    lambda fields: json.dumps(fields).encode()
)


@st.composite
def broken(draw):
    """A body with something wrong, or odd, in it."""
    body = draw(bodies)
    at = draw(st.integers(0, len(body)))
    return body[:at] + draw(st.binary(max_size=3)) + body[at + draw(st.integers(0, 2)) :]


def cut(body, size):
    return Pieces([body[start : start + size] for start in range(0, len(body), size)])


def outcome(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except (BodyError, AnswerError) as error:
        return type(error), str(error), vars(error)


@pytest.mark.parametrize("path", ENDPOINTS)
@given(body=bodies | broken(), piece=st.integers(1, 9))
@example(body=b'{"messages":[],"prompt":"","input":"","n":NaN,"n":1, "x":1e999 } \n', piece=2)
@example(body=b'{"messages":[],"prompt":"\\ud800","input":"x"}', piece=3)
@example(body=b'{"messages":[],"prompt":[1,2],"input":"x","truncate_prompt_tokens":1}', piece=3)
@example(body=b'{"messages":[],"prompt":"\xff","input":"x"}', piece=3)
@example(body=b'\xef\xbb\xbf{"messages":[],"prompt":"","input":""}{', piece=3)
def test_a_large_request_says_the_same(path, body, piece):
    known = outcome(parse, path, body, FREELY)
    found = outcome(large_request, body, path, FREELY, splits=True)
    if not hasattr(known, "raw"):
        assert found == known
        return
    small, (changed, prefill) = found
    assert small.raw == {}
    assert changed == (known.body if known.must_change else b"")
    assert small.large.chain == PrefixMap().chain(known.prefix)
    assert small.large.prefix_bytes == len(known.prefix)
    sent = cut(changed or body, piece)
    large = small._replace(body=sent, large=small.large._replace(prefill=prefill))
    if known.splittable:
        assert prefill_body(large) == prefill_body(known)
        assert joined(decode_body(large, PARAMS)) == decode_body(known, PARAMS)
    else:
        assert not prefill
    for name in set(known._fields) - {"raw", "body", "large", "prefix"}:
        assert repr(getattr(large, name)) == repr(getattr(known, name))  # NaN is no NaN


def test_a_request_nobody_would_split_makes_no_second_body():
    body = json.dumps({"prompt": "x"}).encode()
    small, (_, prefill) = large_request(body, COMPLETIONS, FREELY, splits=False)
    assert not small.splittable
    assert not prefill


@pytest.mark.parametrize(
    ("fields", "splits"),
    [
        ({"input": "long"}, True),
        ({"input": "long", "stream": True}, True),
        ({"input": "long", "stream": True, "enable_response_messages": True}, False),
        ({"input": "x", "instructions": "long", "stream": True}, False),
        ({"input": "x", "instructions": "long"}, True),
    ],
)
def test_a_stream_that_repeats_a_large_request_is_served_whole(fields, splits):
    """Its events would be read on the event loop."""
    body = json.dumps(fields).replace("long", "x" * JOINED_BYTES).encode()
    small, (_, prefill) = large_request(body, "/v1/responses", FREELY, splits=True)
    assert small.splittable == splits == bool(prefill)


@given(body=bodies | broken())
def test_what_passes_changes_only_where_it_names_a_handoff(body):
    def names_one(sent):
        try:
            return any("kv_transfer_params" in each for each in objects(json.loads(sent)))
        except ValueError:
            return False

    found = outcome(passed_request, body, FREELY)
    if found[0] == Settled():
        assert not names_one(body)
    elif isinstance(found[0], Settled):
        [made] = found[1]
        assert names_one(body)
        assert not names_one(made)
    else:
        assert found[0] is BodyError


@given(fields=st.dictionaries(st.sampled_from(["kv_transfer_params", "usage", "id"]), values))
def test_answers_are_cleaned_alike(fields):
    answer = json.dumps(fields).encode()
    changed, made = clean_answer(answer, cached_tokens=3)
    assert (made[0] if changed else answer) == strip_answer(answer, cached_tokens=3)


@pytest.mark.parametrize(
    ("answer", "whole"),
    [(b"{}", True), (b"{", False), (b'{"kv_transfer_params":{"a":1}}', True), (b"", False)],
)
def test_half_a_prefill_answer_is_seen(answer, whole):
    (_, _, found), _ = prefill_answer(answer)
    assert found is whole


class TestLight:
    """What is read on the event loop is little, whatever it holds."""

    @given(body=bodies)
    def test_values_are_counted(self, body):
        def count(value):
            if isinstance(value, dict):
                return 1 + sum(map(count, value.values()))
            return 1 + sum(map(count, value)) if isinstance(value, list) else 1

        marks = sum(body.count(mark) for mark in (b",", b"[", b"{"))
        assert count(json.loads(body)) <= 1 + 2 * marks

    @pytest.mark.parametrize("shape", GENERATING, ids=lambda shape: shape.name)
    def test_by_size_and_values(self, shape):
        body = shape.make(4 * LIGHT_BYTES)
        marks = sum(body.count(mark) for mark in (b",", b"[", b"{"))
        assert is_light(body) == (marks <= LIGHT_VALUES)
        assert is_light(body[:LIGHT_BYTES])
        assert not is_light(Pieces([body]))

    def test_a_long_text_is_light_and_many_items_are_not(self):
        assert is_light(json.dumps({"prompt": "word " * 40_000}).encode())
        assert not is_light(json.dumps({"prompt": [1] * 20_000}).encode())


class TestMedia:
    """A medium is told from others by what it is, and from no other by anything else."""

    def prefix(self, part):
        body = {"messages": [{"role": "user", "content": [part]}]}
        return parse(CHAT, json.dumps(body).encode(), FREELY).prefix

    def test_alike_and_not(self):
        long, other = "data:image/png;base64," + "A" * 999, "data:image/png;base64," + "B" * 999
        parts = [
            {"type": "image_url", "image_url": {"url": long}},
            {"type": "image_url", "image_url": {"url": other}},
            {"type": "image_url", "image_url": {"url": long + "A"}},
            {"type": "image_url", "image_url": {"url": long, "detail": "low"}},
            {"type": "image_url", "image_url": {"url": long, "detail": other}},
            {"type": "image_url", "image_url": {"url": other, "detail": long}},
            {"type": "input_image", "image_url": long},
            {"type": "input_image", "image_url": "http://x"},
            {"type": "image_url", "image_url": {"url": long}, "uuid": "1"},
            {"type": "image_url", "image_url": [{"url": long}]},
        ]
        prefixes = [self.prefix(part) for part in parts]
        assert len(set(prefixes)) == len(parts)
        assert prefixes == [self.prefix(part) for part in parts]
        assert len(set(map(len, prefixes))) == 1

    def test_brackets_that_can_be_read_and_not_written_are_refused(self):
        """At every depth it is one of both."""
        bodies = [
            b'{"messages":[],"tools":' + b"[" * depth + b"]" * depth + b"}"
            for depth in range(1, 1_200, 7)
        ]
        refused = sum(not hasattr(outcome(parse, CHAT, body, FREELY), "raw") for body in bodies)
        assert 0 < refused < 100
