"""Watching and cleaning streams whose bytes may be cut anywhere."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.raw_client import pieces

from headway.router.openai import AnswerError, Usage
from headway.router.openai.request import TRANSFER_FIELDS
from headway.router.openai.stream import Opening, StreamCleaner, StreamTap

USAGE = '"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}'
CHAT = (
    'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    ": keep-alive\n\n"
    'data: {"choices":[{"delta":{"content":"data: \u00e9\U0001f600 \\ndata: [DONE]\\n"}}]}\n\n'
    'data: {"choices":[{"delta":{"content":""},"finish_reason":"length"}]}\n\n'
    f'data: {{"choices":[],{USAGE}}}\n\n'
    "data: [DONE]\n\n"
).encode()
MESSAGES = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":1,'
    b'"output_tokens":0}}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"input_tokens":4,"output_tokens":2,"cache_read_input_tokens":5}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
SECRET = b'"kv_transfer_params":{"remote_host":"10.0.0.1"}'


OPENAI_ERROR = b'{"error": {"message": "gone", "type": "x", "param": null, "code": 503}}'
ANTHROPIC_ERROR = b'{"type":"error","error":{"type":"internal_error","message":"gone"}}'


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"data: " + OPENAI_ERROR + b"\n\n", (503, OPENAI_ERROR)),
        (b"data: " + OPENAI_ERROR + b"\n\ndata: [DONE]\n\n", (503, OPENAI_ERROR)),
        (b"event: error\ndata: " + ANTHROPIC_ERROR + b"\n\n", (500, ANTHROPIC_ERROR)),
        (b'data: {"error": {"code": 200}}\n\n', (500, b'{"error": {"code": 200}}')),
        (b'data: {"error": 5}\n\n', None),
        (b'data: {"error": {}\n\n', None),
        (b'data: {"error"\n\n', None),
        (b"event: error\n\n", None),
        (CHAT, None),
        (MESSAGES, None),
        (b"data: 1\n\n", None),
        (b"event: ping\ndata: 1\n\n", None),
        (b"data: {}\n\n", None),
    ],
)
@pytest.mark.parametrize(
    "silence",
    [b"", b": ping\n\n", b":\n\n" * 3, b"\n", b"\r\n: a: b\r\n\r\n"],
    ids=["", "comment", "comments", "blank", "crlf"],
)
@given(cuts=st.lists(st.integers(0, 150)))
def test_an_error_that_a_stream_begins_with(silence, data, found, cuts):
    """Wherever it is cut, and whatever says nothing before it; until then nothing passes."""
    opening = Opening()
    parts = pieces(silence + data, cuts)
    passed = b""
    for part in parts:
        if passed:
            passed += part
        else:
            passed = opening.feed(part)
            if opening.error is not None:
                break
    assert opening.error == found
    assert not passed or passed == silence + data or found


@pytest.mark.parametrize(
    "data", [b"", b"data: " + OPENAI_ERROR + b"\n", b": ping", b": ping\n", b"\r"]
)
def test_a_stream_that_has_said_nothing_yet_is_held(data):
    opening = Opening()
    assert opening.feed(data) == b""
    assert opening.error is None


def test_what_is_held_of_a_streams_beginning_is_bounded():
    opening = Opening()
    passed = b""
    for _ in range(100):
        passed = opening.feed(b":" + b"x" * 1000 + b"\n")
        if passed:
            break
    assert 60_000 < len(passed) < 70_000


def test_a_large_beginning_is_read_all_the_same():
    silence = b":" + b"x" * 70_000 + b"\n\n"
    opening = Opening()
    opening.feed(silence + b"data: " + OPENAI_ERROR + b"\n\n")
    assert opening.error == (503, OPENAI_ERROR)
    assert Opening().feed(silence + CHAT) == silence + CHAT


def response_event(name, params=b'"kv_transfer_params":null'):
    return (
        b"event: response.%b\n" % name
        + b'data: {"response":{"output":["%b"],' % (b"x" * 5000)
        + b'"usage":{"input_tokens":8,"output_tokens":2},'
        + params
        + b'},"sequence_number":3,"type":"response.%b"}\n\n' % name
    )


RESPONSES = (
    response_event(b"created") + response_event(b"in_progress") + response_event(b"completed")
)


def cut(data, places):
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def watched(chunks, kind="chat"):
    tap = StreamTap(kind)
    for number, chunk in enumerate(chunks):
        tap.feed(chunk, float(number))
    return tap


def summary(tap):
    return tap.events, tap.usage, tap.finish, tap.done, tap.at_boundary


WHOLE = {
    "chat": (CHAT, (5, Usage(9, 3), "length", True, True)),
    "messages": (MESSAGES, (3, Usage(9, 2, 5), "end_turn", True, True)),
    "responses": (RESPONSES, (3, Usage(8, 2), "completed", True, True)),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_cut_at_every_position_changes_nothing(kind):
    data, expected = WHOLE[kind]
    for place in range(len(data) + 1):
        tap = watched([data[:place], data[place:]], kind)
        assert tap.events == expected[0]
        if place % 50 == 0:
            assert summary(tap) == expected
    assert summary(watched([data[i : i + 1] for i in range(len(data))], kind)) == expected


TYPE_FIRST = b"event: response.%b\ndata: %b\n\n" % (
    b"failed",
    json.dumps({"type": "response.failed", "response": {"output": ["\\n" * 9000]}}).encode(),
)
ENDS = {
    **{kind: (kind, data) for kind, (data, _) in WHOLE.items()},
    "type before a long answer": ("responses", b"data: {}\n\n" + TYPE_FIRST),
}


@pytest.mark.parametrize("name", ENDS)
@given(data=st.data())
def test_no_beginning_of_a_stream_is_complete(name, data):
    """But for the blank line behind `[DONE]`, which tells nothing more."""
    kind, whole = ENDS[name]
    place = data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 20, len(whole) - 1))
    parts = pieces(whole[:place], data.draw(st.lists(st.integers(0, len(whole)), max_size=30)))
    assert watched(parts, kind).done is whole[:place].rstrip(b"\n").endswith(b"data: [DONE]")
    assert watched([*parts, whole[place:]], kind).done


def test_windows_line_ends_are_events_too():
    tap = watched([CHAT.replace(b"\n", b"\r\n")])
    assert (tap.events, tap.done, tap.at_boundary) == (5, True, True)


@given(place=st.integers(0, len(CHAT)))
def test_boundary_is_where_an_event_ended(place):
    came = CHAT[:place]
    assert watched([came]).at_boundary is (came == b"" or came.endswith(b"\n\n"))


def test_text_that_looks_like_an_end_is_none():
    cut_off = CHAT.removesuffix(b"data: [DONE]\n\n")
    assert not watched([cut_off]).done
    text = json.dumps({"text": '"finish_reason":"stop","usage":{"prompt_tokens":1}'}).encode()
    tap = watched([b"data: " + text + b"\n\n"])
    assert (tap.finish, tap.usage) == (None, None)


def test_first_and_last_event_times_are_the_callers():
    tap = StreamTap()
    assert tap.first_s is None
    tap.feed(b": keep-alive\n\n", 1.0)
    tap.feed(b"data", 2.0)
    tap.feed(b": {}\n\n", 3.0)
    tap.feed(b"data: {}\n\ndata: {}\n\n", 4.0)
    assert (tap.first_s, tap.passing.last_s, tap.events) == (3.0, 4.0, 3)


def test_first_event_of_a_response_is_the_first_after_its_preamble():
    tap = StreamTap("responses")
    for now_s, name in enumerate(["created", "in_progress", "output_item.added", "completed"]):
        tap.feed(response_event(name.encode()), float(now_s))
    assert tap.first_s == 2.0


def test_memory_of_a_tap_is_bounded():
    tap = watched([b"data: " + b"x" * 1_000_000 + b"\n\n"] * 3 + [CHAT])
    assert summary(tap) == (8, *WHOLE["chat"][1][1:])
    assert len(tap._seen) <= 6144


@pytest.mark.parametrize("data", [CHAT, MESSAGES, RESPONSES, CHAT.replace(b"\n", b"\r\n")])
@given(places=st.lists(st.integers(0, 20_000), max_size=6))
@settings(max_examples=40)
def test_clean_stream_keeps_its_bytes(data, places):
    cleaner = StreamCleaner()
    assert b"".join(cleaner.feed(chunk) for chunk in cut(data, places)) == data


@given(places=st.lists(st.integers(0, 20_000), max_size=6))
@settings(max_examples=60)
def test_handoff_parameters_leave_a_stream_wherever_it_is_cut(places):
    data = response_event(b"created") + response_event(b"completed", SECRET)
    cleaner = StreamCleaner()
    passed = [cleaner.feed(chunk) for chunk in cut(data, places)]
    seen = b"".join(passed)
    assert b"10.0.0.1" not in seen
    assert seen.startswith(response_event(b"created") + b"event: response.completed\ndata: {")
    assert all(not part or part.endswith(b"\n\n") for part in passed)
    event = json.loads(seen.split(b"data: ")[-1])
    expected = json.loads(response_event(b"completed").split(b"data: ")[-1])
    del expected["response"]["kv_transfer_params"]
    assert event == expected


def test_whole_events_are_not_held_back():
    cleaner = StreamCleaner()
    assert cleaner.feed(b"data: {}\n\nda") == b"data: {}\n\n"
    assert cleaner.feed(b"ta: {}\n") == b""
    assert cleaner.feed(b"\n") == b"data: {}\n\n"
    whole = b"data: {}\n\n"
    assert cleaner.feed(whole) is whole


def test_cached_tokens_of_a_stream_are_the_prefill_engines():
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}
    data = b"data: " + json.dumps({"usage": usage}).encode() + b"\n\n"
    seen = StreamCleaner(cached_tokens=2).feed(data)
    assert json.loads(seen[6:])["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


@pytest.mark.parametrize("name", [*TRANSFER_FIELDS, "cached_tokens", "cache_read_input_tokens"])
def test_whatever_is_cleaned_is_found(name):
    """An event is looked at for parts of these names only."""
    usage = {"prompt_tokens": 9, "input_tokens": 9, "cache_read_input_tokens": 20}
    usage |= {"prompt_tokens_details": {"cached_tokens": 20}}
    value = {name: {"a": 1}} if name in TRANSFER_FIELDS else {"usage": usage}
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    assert StreamCleaner(cached_tokens=2).feed(data) not in {b"", data}


def test_what_only_looks_like_a_count_passes():
    for event in (b'data: "cache\n\n', b'data: {"text": "say \\"cached_tokens\\""}\n\n'):
        assert StreamCleaner(cached_tokens=2).feed(event) == event


def test_what_cannot_be_cleaned_is_refused():
    with pytest.raises(AnswerError):
        StreamCleaner().feed(b'data: {"kv_transfer_params": {"x"\n\n')
    cleaner = StreamCleaner(limit=100)
    with pytest.raises(AnswerError):
        cleaner.feed(b"data: " + b"x" * 101)
