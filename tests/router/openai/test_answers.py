"""What the router does to answers, errors and headers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.router.openai import (
    AnswerError,
    Usage,
    answer_lines,
    error_body,
    handoff_params,
    stream_error,
    strip_answer,
    too_long,
    upstream_lines,
    usage_of,
)

CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
COUNTS = st.none() | st.integers(0, 40)


def encode(**fields):
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("usage", "prompt_tokens"),
    [
        (CHAT_USAGE, 10),
        ({"input_tokens": 7, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 3}}, 7),
        ({"input_tokens": 7, "output_tokens": 1}, 7),
        ({"input_tokens": 2, "output_tokens": 1, "cache_read_input_tokens": 5}, 7),
        (None, None),
        ({"prompt_tokens": "x"}, None),
    ],
)
def test_prefill_answer_of_every_endpoint_is_read(usage, prompt_tokens):
    answer = encode(kv_transfer_params={"remote_host": "h"}, usage=usage)
    assert handoff_params(answer) == ({"remote_host": "h"}, prompt_tokens)


@pytest.mark.parametrize("params", [None, {}, [], "x", 1])
def test_no_parameters_are_none(params):
    assert handoff_params(encode(kv_transfer_params=params, usage=CHAT_USAGE)) == (None, 10)


@pytest.mark.parametrize(
    "answer", [b"", b'{"kv_transfer_params": {"a"', b"[]", b"\xff", b"[" * 99999]
)
def test_broken_prefill_answer_has_no_parameters(answer):
    assert handoff_params(answer) == (None, None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1.50,  "b": []}',
        b'{"kv_transfer_params":null, "usage": {"prompt_tokens": 3}}',
        b"not json",
        b'{"choices": [{"text": "\\"kv_transfer_params\\": {}"}]}',
    ],
)
def test_clean_answer_keeps_its_bytes(body):
    assert strip_answer(body, cached_tokens=None) is body


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_handoff_parameters_never_reach_the_client(name):
    body = encode(id="x", **{name: {"remote_host": "10.0.0.1"}}, usage=CHAT_USAGE)
    assert json.loads(strip_answer(body, cached_tokens=None)) == {"id": "x", "usage": CHAT_USAGE}


def test_answer_cut_short_is_not_passed_on_with_parameters():
    with pytest.raises(AnswerError):
        strip_answer(b'{"kv_transfer_params": {"remote_host": "10.0', cached_tokens=None)


@given(prompt=st.integers(0, 40), counted=COUNTS, known=COUNTS)
def test_cached_tokens_are_the_prefill_engines_and_never_more_than_the_prompt(
    prompt, counted, known
):
    usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": counted}}
    seen = json.loads(strip_answer(encode(usage=usage), cached_tokens=known))["usage"]
    if counted is None:
        assert seen == usage
    else:
        wanted = counted if known is None else known
        assert seen["prompt_tokens_details"]["cached_tokens"] == min(wanted, prompt)
    assert seen["prompt_tokens"] == prompt


@given(fresh=st.integers(0, 40), read=st.integers(0, 40), made=st.integers(0, 9), known=COUNTS)
def test_messages_usage_keeps_its_sum(fresh, read, made, known):
    usage = {
        "input_tokens": fresh,
        "output_tokens": 1,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": made,
    }
    seen = json.loads(strip_answer(encode(usage=usage), cached_tokens=known))["usage"]
    assert sum(seen.values()) == sum(usage.values())
    assert min(seen.values()) >= 0
    assert seen["cache_read_input_tokens"] == min(read if known is None else known, fresh + read)


def test_responses_usage_is_corrected():
    usage = {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 8}}
    seen = json.loads(strip_answer(encode(usage=usage), cached_tokens=0))["usage"]
    assert seen["input_tokens_details"]["cached_tokens"] == 0
    assert usage_of(seen) == Usage(9, 2, 0)


@pytest.mark.parametrize(
    "message",
    [
        (
            "This model's maximum context length is 8192 tokens. However, your prompt contains at "
            "least 8193 input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt. (parameter=input_tokens, value=8193)"
        ),
        (
            "This model's maximum context length is 8192 tokens. However, your prompt contains "
            "999999 characters (more than 65536 characters, which is the upper bound for 8192 "
            "input tokens)."
        ),
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        (
            "The decoder prompt (length 8192) plus the number of requested output tokens (at least "
            "1) is longer than the maximum model length of 8192."
        ),
        "max_tokens=9000 cannot be greater than max_model_len=8192. Please request fewer.",
        "max_completion_tokens=9000 cannot be greater than max_model_len=8192.",
        "max_output_tokens=9000 cannot be greater than max_model_len=8192.",
    ],
)
def test_refusals_for_length_are_known(message):
    assert too_long(400, error_body(400, message))
    assert too_long(400, error_body(400, message, kind="messages"))
    assert not too_long(500, error_body(500, message))
    assert not too_long(400, error_body(400, "Bad value: " + message))


@pytest.mark.parametrize("body", [b"", b"[]", b'{"error": "x"}', b'{"error": {"message": 1}}'])
def test_other_refusals_are_not_for_length(body):
    assert not too_long(400, body)


def test_refusal_by_code_is_for_length():
    assert too_long(400, error_body(400, "too much", code="context_length_exceeded"))


def test_errors_have_their_apis_form():
    assert json.loads(error_body(400, "no", param="n", code="bad")) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "bad"}
    }
    assert json.loads(error_body(429, "no", kind="messages")) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "no"},
    }


@pytest.mark.parametrize("kind", ["chat", "completions", "responses", "messages"])
@pytest.mark.parametrize("mid_event", [True, False])
def test_error_in_a_stream_is_one_whole_event_without_an_end(kind, mid_event):
    event = stream_error("the engine\nleft", kind, mid_event=mid_event)
    assert event.startswith(b"\n\n") is mid_event
    lines = event.strip().decode().split("\n")
    assert event.endswith(b"\n\n")
    assert lines[:-1] == ([] if kind in {"chat", "completions"} else ["event: error"])
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["message"] == "the engine\nleft"
    assert b"[DONE]" not in event


def test_error_in_a_numbered_stream_has_its_number():
    data = stream_error("x", "responses", sequence_number=4).split(b"data: ")[1]
    assert json.loads(data)["sequence_number"] == 4


def fields(lines):
    return [tuple(line.split(b": ", 1)) for line in lines.split(b"\r\n")[:-1]]


def send(headers, **more):
    own = {"request_id": "r", "api_key": None}
    return fields(upstream_lines(headers, **(own | more)))


@pytest.mark.parametrize(
    "name",
    [
        *(b"authorization", b"x-api-key", b"cookie", b"host", b"content-length", b"expect"),
        *(b"transfer-encoding", b"connection", b"keep-alive", b"te", b"upgrade", b"trailer"),
        *(b"x-request-id", b"x-data-parallel-rank", b"x-headway-route", b"x-headway-anything"),
        *(b"x-forwarded-for", b"proxy-authorization", b"X-API-Key", b"Authorization"),
    ],
)
def test_what_is_the_clients_or_the_connections_own_stays_here(name):
    assert b"secret" not in dict(send([(name, b"secret")])).values()


def test_headers_named_by_connection_stay_here():
    sent = send([(b"connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"x-other", b"2")])
    assert (b"x-other", b"2") in sent
    assert b"x-mine" not in dict(sent)


def test_engine_gets_its_own_key_and_id():
    sent = send([(b"host", b"client"), (b"x-vllm-priority", b"-9")], api_key="k", priority=3)
    assert len(sent) == len(dict(sent))
    assert dict(sent) == {
        b"x-vllm-priority": b"3",
        b"accept-encoding": b"identity",
        b"x-request-id": b"r",
        b"authorization": b"Bearer k",
    }


def test_answer_headers_of_the_connection_stay_here():
    engine = [
        *[(b"content-type", b"text/plain"), (b"retry-after", b"3"), (b"server", b"uvicorn")],
        *[(b"content-length", b"5"), (b"te", b"chunked"), (b"connection", b"x-a")],
        *[(b"x-a", b"1"), (b"x-headway-route", b"fake"), (b"content-encoding", b"gzip")],
    ]
    passed = dict(fields(answer_lines(engine)))
    assert passed.keys() == {b"content-type", b"retry-after", b"content-encoding"}
    assert b"content-encoding" not in dict(fields(answer_lines(engine, rewritten=True)))


EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
CHUNKS = (b"transfer-encoding", b"chunked")
NOT_BUFFERED = {b"x-accel-buffering": b"no"}
NOT_KEPT = {b"cache-control": b"no-cache"}


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ([EVENTS], NOT_BUFFERED | NOT_KEPT),
        ([EVENTS, CHUNKS], NOT_BUFFERED | NOT_KEPT),
        ([(b"content-type", b"Text/Event-Stream")], NOT_BUFFERED | NOT_KEPT),
        ([EVENTS, (b"cache-control", b"no-store")], NOT_BUFFERED | {b"cache-control": b"no-store"}),
        ([EVENTS, (b"x-accel-buffering", b"yes")], {b"x-accel-buffering": b"yes"} | NOT_KEPT),
        ([(b"content-type", b"audio/mpeg"), CHUNKS], NOT_BUFFERED),
        ([(b"content-type", b"application/json")], {}),
        ([], {}),
    ],
)
@pytest.mark.parametrize("rewritten", [False, True])
def test_proxies_hear_what_not_to_hold_back_or_keep(engine, told, rewritten):
    """And what the engine itself says about it stays."""
    said = fields(answer_lines(engine, rewritten=rewritten))
    about = [field for field in said if field[0] in {b"x-accel-buffering", b"cache-control"}]
    assert len(about) == len(told)
    assert dict(about) == told
