"""Reading request bodies and making the legs' bodies."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.asking import FREELY

from headway.router.openai import (
    ENDPOINTS,
    BodyError,
    decode_body,
    parse,
    prefill_body,
)

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
PROMPTS = {
    CHAT: {"messages": HELLO},
    COMPLETIONS: {"prompt": "hello"},
    RESPONSES: {"input": "hello"},
    MESSAGES: {"messages": HELLO, "max_tokens": 9},
}
PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "remote_prefill_cached_tokens": 7,
}

text = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
unknown = st.dictionaries(text.map(lambda name: "x_" + name), values, max_size=4)


def encode(path, **fields):
    return json.dumps({"model": "m"} | PROMPTS[path] | fields).encode()


def read(path, **fields):
    return parse(path, encode(path, **fields), FREELY)


@pytest.mark.parametrize("path", ENDPOINTS)
class TestEveryEndpoint:
    def test_whole_body_is_the_clients_own_bytes(self, path):
        body = b" \n" + encode(path, odd=[1.50, "\u00e9"]).replace(b",", b" ,  ") + b"\r\n"
        assert parse(path, body, FREELY).body is body

    def test_plain_request_may_be_split(self, path):
        parsed = read(path)
        assert (parsed.splittable, parsed.why_not, parsed.must_change) == (True, "", False)

    @pytest.mark.parametrize("field", ["kv_transfer_params", "ec_transfer_params"])
    @pytest.mark.parametrize("value", [{"remote_host": "evil"}, None, "x", [], {}])
    def test_client_cannot_direct_an_engine(self, path, field, value):
        body = encode(path, **{field: value}, vllm_xargs={"kv_transfer_params": "x", "a": 1})
        parsed = parse(path, body, FREELY)
        assert parsed.must_change
        for sent in (parsed.body, prefill_body(parsed), decode_body(parsed, PARAMS)):
            fields = json.loads(sent)
            assert fields["vllm_xargs"] == {"a": 1}
            assert "ec_transfer_params" not in fields
            assert "evil" not in sent.decode()
        assert "kv_transfer_params" not in json.loads(parsed.body)

    @given(fields=unknown)
    @settings(max_examples=30)
    def test_unknown_fields_survive_in_both_legs(self, path, fields):
        parsed = read(path, **fields)
        prefill, decode = json.loads(prefill_body(parsed)), json.loads(decode_body(parsed, PARAMS))
        for key, value in fields.items():
            assert prefill[key] == value
            assert decode[key] == value

    @given(fields=unknown, space=st.text(" \t\r\n", max_size=3))
    @settings(max_examples=30)
    def test_decode_body_is_the_clients_bytes_and_the_parameters(self, path, fields, space):
        body = encode(path, **fields)[:-1] + (space + "}" + space).encode()
        sent = decode_body(parse(path, body, FREELY), PARAMS)
        assert sent.startswith(body.rstrip()[:-1].rstrip())
        assert json.loads(sent) == json.loads(body) | {"kv_transfer_params": PARAMS}

    def test_prefill_asks_for_one_token_and_keeps_the_kv(self, path):
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
        sent = json.loads(prefill_body(read(path, stream=True, **{limit: 100})))
        assert sent[limit] == 1
        assert sent["stream"] is False
        assert sent["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}

    def test_prompt_is_the_same_in_both_legs(self, path):
        printed = {
            "tools": [{"type": "function", "function": {"name": "f"}, "name": "f"}],
            "tool_choice": {"type": "auto"} if path == MESSAGES else "auto",
            "response_format": {"type": "json_object"},
            "chat_template_kwargs": {"enable_thinking": False},
            "reasoning_effort": "low",
            "cache_salt": "s",
        }
        parsed = read(path, **printed)
        prefill, decode = json.loads(prefill_body(parsed)), json.loads(decode_body(parsed, PARAMS))
        for name in (*printed, *PROMPTS[path].keys() - {"max_tokens"}):
            assert prefill[name] == decode[name]

    def test_prefill_leg_carries_nothing_that_shapes_the_answer(self, path):
        shaping = {
            "stop": ["x"],
            "stop_sequences": ["x"],
            "min_tokens": 5,
            "stream_options": {"include_usage": True},
            "logprobs": 1,
            "structured_outputs": {"json": {}},
            "guided_json": {},
            "request_id": "mine",
            "n": 1,
        }
        parsed = read(path, stream=True, **shaping)
        assert not shaping.keys() & json.loads(prefill_body(parsed)).keys()
        assert shaping.items() <= json.loads(decode_body(parsed, PARAMS)).items()

    @pytest.mark.parametrize("choice", ["required", {"type": "function"}, {"type": "any"}, {}, []])
    def test_forced_tool_is_served_whole(self, path, choice):
        assert read(path, tool_choice=choice).why_not == "forced tool_choice"

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"{", b"[]", b"null", b'"x"', b"{}x", b"\xff\xfe{", b"\x80"),
            *(b"[" * 100_000, b'{"a":' + b"1" * 5000 + b"}", b"{}", b'{"model":1}'),
            '{"a":1}'.encode("utf-16"),
        ],
    )
    def test_unreadable_body_is_a_400(self, path, body):
        with pytest.raises(BodyError) as caught:
            parse(path, body, FREELY)
        assert caught.value.status == 400
        assert caught.value.message

    @given(
        fields=st.dictionaries(
            st.sampled_from(
                [
                    *("stream", "n", "max_tokens", "max_completion_tokens", "max_output_tokens"),
                    *(
                        "messages",
                        "prompt",
                        "input",
                        "instructions",
                        "system",
                        "tools",
                        "vllm_xargs",
                    ),
                    *("tool_choice", "truncation", "best_of", "echo", "model", "cache_salt"),
                ]
            ),
            values
            | st.lists(st.dictionaries(st.sampled_from(["role", "content", "type"]), values)),
        )
    )
    @settings(max_examples=80)
    def test_any_json_is_read_or_refused(self, path, fields):
        """Wrong types never raise anything but BodyError; the engine refuses what it must."""
        try:
            parsed = read(path, **fields)
        except BodyError:
            return
        json.loads(prefill_body(parsed))
        json.loads(decode_body(parsed, PARAMS))

    def test_lone_surrogates_survive(self, path):
        fields = json.loads(encode(path, user="\ud800", kv_transfer_params={}))
        parsed = parse(path, json.dumps(fields).encode(), FREELY)
        for sent in (parsed.body, prefill_body(parsed), decode_body(parsed, PARAMS)):
            assert json.loads(sent)["user"] == "\ud800"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("n", 2), ("n", "2"), ("n", "many"), ("best_of", 3), ("echo", True)],
        *[("prompt_logprobs", 0), ("use_beam_search", True), ("truncate_prompt_tokens", -1)],
        *[("prompt_embeds", "AAAA"), ("suffix", "x")],
    ],
)
def test_what_a_handoff_cannot_carry_is_served_whole(path, field, value):
    parsed = read(path, **{field: value})
    assert (parsed.splittable, parsed.why_not) == (False, field)


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], []])
def test_list_of_prompts_is_served_whole(prompt):
    assert read(COMPLETIONS, prompt=prompt).why_not == "list of prompts"


@pytest.mark.parametrize("prompt", ["a", ["a"], [1, 2], [[1, 2]]])
def test_one_prompt_may_be_split(prompt):
    assert read(COMPLETIONS, prompt=prompt).splittable


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"background": True}, "background"),
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "mcp"}]}, "tools run by the engine"),
        ({"tools": [{"type": "function", "name": "f"}]}, ""),
    ],
)
def test_responses_that_live_in_one_engine_are_served_whole(fields, why):
    assert read(RESPONSES, **fields).why_not == why


def test_prefill_of_a_response_is_not_stored():
    assert json.loads(prefill_body(read(RESPONSES)))["store"] is False


def test_both_limits_of_a_chat_are_clamped_and_only_where_present():
    sent = json.loads(prefill_body(read(CHAT, max_completion_tokens=50)))
    assert (sent["max_tokens"], sent["max_completion_tokens"]) == (1, 1)
    assert "max_completion_tokens" not in json.loads(prefill_body(read(CHAT)))


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}, {"max_tokens": 5}])
def test_decode_leg_gets_the_clients_own_limit(fields):
    sent = json.loads(decode_body(read(CHAT, **fields), PARAMS))
    assert {key: sent[key] for key in sent if key == "max_tokens"} == fields


@pytest.mark.parametrize(
    ("path", "fields", "limit"),
    [
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, 6),
        (CHAT, {"max_completion_tokens": None, "max_tokens": "7"}, 7),
        (CHAT, {}, None),
        (COMPLETIONS, {"max_tokens": 3.0}, 3),
        (RESPONSES, {"max_output_tokens": 4, "max_tokens": 1}, 4),
        (MESSAGES, {"max_tokens": 8}, 8),
    ],
)
def test_answer_limit_is_the_endpoints_own(path, fields, limit):
    assert read(path, **fields).max_tokens == limit


@pytest.mark.parametrize(
    ("value", "stream"),
    [
        (True, True),
        (1, True),
        ("true", True),
        (False, False),
        (None, False),
        ([], False),
        (0, False),
    ],
)
def test_stream_is_read_as_the_engine_reads_it(value, stream):
    assert read(CHAT, stream=value).stream is stream


@pytest.mark.parametrize(
    ("value", "limit_s"),
    [(0.5, 0.5), (2, 2.0), (0, None), (-1, None), ("1", None), (True, None), (10**400, None)],
)
def test_own_latency_limits(value, limit_s):
    parsed = read(CHAT, vllm_xargs={"headway_ttft_slo_s": value, "headway_tpot_slo_s": value})
    assert (parsed.ttft_slo_s, parsed.tpot_slo_s) == (limit_s, limit_s)


turn = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant"]),
        "content": text | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": text})),
    }
)


@given(turns=st.lists(turn, min_size=1, max_size=6), keep=st.integers(0, 6))
@settings(max_examples=50)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_longer_conversation_starts_with_the_shorter(path, turns, keep):
    name = "input" if path == RESPONSES else "messages"
    shorter, longer = read(path, **{name: turns[:keep]}), read(path, **{name: turns})
    assert longer.prefix.startswith(shorter.prefix)
    assert longer.prompt_bytes >= shorter.prompt_bytes


def test_prefix_tells_models_salts_and_tools_apart():
    prefixes = {
        read(CHAT, **fields).prefix
        for fields in ({}, {"model": "o"}, {"cache_salt": "s"}, {"tools": [{"type": "function"}]})
    }
    assert len(prefixes) == 4


def test_sampling_does_not_change_the_prefix():
    assert read(CHAT, temperature=1, max_tokens=3, stream=True).prefix == read(CHAT).prefix


def test_token_ids_count_one_each():
    parsed = read(COMPLETIONS, prompt=list(range(100)))
    assert (parsed.prompt_token_ids, parsed.prompt_bytes) == (100, 400)
    assert read(COMPLETIONS, prompt="x" * 100).prompt_token_ids is None
    assert read(COMPLETIONS, prompt=list(range(200))).prefix.startswith(parsed.prefix)


def test_size_is_the_prompts_and_a_picture_is_no_text():
    assert (
        1000 <= read(CHAT, messages=[{"role": "user", "content": "x" * 1000}]).prompt_bytes < 1100
    )
    url = "data:image/png;base64," + "A" * 1_000_000
    picture = [{"type": "image_url", "image_url": {"url": url}}]
    assert read(CHAT, messages=[{"role": "user", "content": picture}]).prompt_bytes < 10_000


def test_unknown_path_is_not_a_generating_endpoint():
    with pytest.raises(KeyError):
        parse("/v1/embeddings", b"{}", FREELY)
