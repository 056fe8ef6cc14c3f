"""The bodies of the legs of a request in two: prefill and decode.

What a chat template may print into the prompt is the same in both legs of a split request: KV of
another prompt gives wrong answers with status 200.
"""

from collections.abc import Mapping
from typing import Any, Final

from headway.router.openai.request import Parsed, dump
from headway.router.wire.pieces import Body, Pieces, joined, parts_of

_PREFILL_PARAMS: Final = {"do_remote_decode": True, "do_remote_prefill": False}

# Shape only the answer, of which the prefill leg's is thrown away. A `stop` or `min_tokens`
# would also keep the leg from ending by length, and only then is its KV kept. Response formats
# stay: some models print them into the prompt. `request_id` goes because ids are one a leg.
_PREFILL_DROPS: Final = frozenset(
    {
        *("stream_options", "stream_interval", "n", "best_of"),
        *("min_tokens", "stop", "stop_sequences", "stop_token_ids", "include_stop_str_in_output"),
        *("logprobs", "top_logprobs", "logprob_token_ids", "include", "prompt_logprobs"),
        *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        *("guided_decoding_backend", "guided_whitespace_pattern", "structural_tag"),
        *("repetition_detection", "return_token_ids", "return_prompt_text"),
        *("enable_response_messages", "request_id"),
    }
)
_SPACE: Final = b" \t\r\n"


def prefill_body(parsed: Parsed) -> Body:
    """The leg that computes the prompt and leaves its KV: one token, not streamed."""
    if parsed.large is not None:
        return parsed.large.prefill
    body: dict[str, Any] = {
        key: value for key, value in parsed.raw.items() if key not in _PREFILL_DROPS
    }
    body["stream"] = False
    if parsed.kind == "responses":
        body["max_output_tokens"] = 1
        body["store"] = False
    else:
        body["max_tokens"] = 1
        if "max_completion_tokens" in body:
            body["max_completion_tokens"] = 1
    body["kv_transfer_params"] = _PREFILL_PARAMS
    return dump(body)


def decode_body(parsed: Parsed, params: Mapping[str, Any]) -> Body:
    """The client's own body with the handoff parameters added; its bytes aren't touched.

    params: what the prefill leg answered, unchanged. Nothing is parsed or written anew: this
    stands between the two legs, and prompts have megabytes.
    """
    body, end = parsed.body, b',"kv_transfer_params":%b}' % dump(dict(params))
    if parsed.large is not None:
        return Pieces(parts_of(body)).replaced_end(parsed.large.closing_bytes, end)
    opened = joined(body)
    return opened[: len(opened) - closing_bytes(opened)] + end


def closing_bytes(body: bytes) -> int:
    """How many bytes at its end are the brace that ends the object and white space beside it."""
    return len(body) - len(body.rstrip(_SPACE).removesuffix(b"}").rstrip(_SPACE))
