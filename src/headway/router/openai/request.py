"""Reads a request body once: what the router needs to know of it to choose a route.

Values that the engine will refuse are left for it to refuse, in its own words; only what can't
be read at all is refused here. Field names and their meaning are those of vLLM 0.32.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headway.core.slo import TPOT_ARGUMENT, TTFT_ARGUMENT, asked_s
from headway.router.openai.asked import Settled, Terms, integer, settle
from headway.router.openai.prompt import prompt_of
from headway.router.wire.errors import BodyError, Kind
from headway.router.wire.pieces import Body

ENDPOINTS: Final[Mapping[str, Kind]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
"""The paths that generate. Anything else passes through."""

TRANSFER_FIELDS: Final = ("kv_transfer_params", "ec_transfer_params")
"""Fields that tell an engine to connect to another: never taken from a client.

vLLM copies `vllm_xargs` into the same place, so they are looked for there too.
"""
_TRANSFER: Final = frozenset(TRANSFER_FIELDS)

_ANSWER_TOKENS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "completions": ("max_tokens",),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
}
# What a handoff can't carry: more than one answer; the prompt itself in the answer; a prompt that
# isn't text or ids, or that is cut to the engine's own context length, which may differ.
_ONE_ONLY: Final = frozenset({"n", "best_of"})
_UNSET_ONLY: Final = frozenset({"echo", "use_beam_search", "prompt_embeds", "suffix"})
_NEVER: Final = frozenset({"prompt_logprobs", "truncate_prompt_tokens"})
_SAMPLING: Final = _ONE_ONLY | _UNSET_ONLY | _NEVER
_CLIENT_TOOLS: Final = ("function", "custom", "namespace")
_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_DECODE: Final = json.JSONDecoder().raw_decode
_SPACE: Final = " \t\n\r"


class Large(NamedTuple):
    """What of a large body can't be worked out on the event loop when it is needed.

    chain: the names of its prefixes (`PrefixMap.chain`). prefix_bytes: of all of its prefix.
    closing_bytes: its last ones, the brace that ends the object and white space beside it.
    prefill: the prefill leg's body, empty if the request isn't to be split.
    """

    chain: tuple[int, ...]
    prefix_bytes: int
    closing_bytes: int
    prefill: Body


class Parsed(NamedTuple):
    """One request body.

    max_tokens: the answer's limit; None if the client left it to the engine.
    prompt_bytes, prompt_token_ids, prefix: see `prompt.PromptText`.
    exact: the engine will see just as many tokens.
    splittable: may be prefilled on one engine and decoded on another; why_not says what forbids
    it. ttft_slo_s, tpot_slo_s: the client's own limits (`vllm_xargs`), seconds, as it gets them.
    settled: what became of what else it asks for itself.
    answers: how many the client asks for.
    raw: the body without what the client may not say; not to be changed.
    must_change: it said such things, so `body` isn't the client's own bytes.
    body: what an engine that serves the request whole is sent, the client's own bytes if it may.
    large: of a body that was read beside the event loop; raw is empty then, and prefix begins it.
    """

    kind: Kind
    model: str
    stream: bool
    max_tokens: int | None
    n: int
    prompt_bytes: int
    prompt_token_ids: int | None
    exact: bool
    prefix: bytes
    splittable: bool
    why_not: str
    ttft_slo_s: float | None
    tpot_slo_s: float | None
    settled: Settled
    answers: int
    raw: dict[str, Any]
    must_change: bool
    body: Body
    large: Large | None = None

    def without_body(self) -> "Parsed":
        """What is known of it when no engine need be sent it any more."""
        return self._replace(raw={}, body=b"", prefix=b"", large=None)


def parse(path: str, body: bytes, terms: Terms) -> Parsed:
    """The body of a request to one of ENDPOINTS (KeyError for another path), within the terms.

    Raises BodyError for a body that isn't a JSON object or lacks its prompt, or asks for what it
    may not.
    """
    kind = ENDPOINTS[path]
    raw = _read(body)
    _check(kind, raw)
    settled = settle(raw, terms)
    must_change = _strip(raw) or settled.changed
    own = raw.get("vllm_xargs")
    ttft_slo_s = tpot_slo_s = None
    if isinstance(own, dict):
        must_change |= _strip(own)
        ttft_slo_s, tpot_slo_s = asked_s(own.get(TTFT_ARGUMENT)), asked_s(own.get(TPOT_ARGUMENT))
    try:
        prefix, size, token_ids = prompt_of(kind, raw)
    except RecursionError:
        raise odd_json() from None
    n = integer(raw.get("n")) or 1
    prompts = _prompts(raw.get("prompt")) if kind == "completions" else 1
    max_tokens = _max_tokens(kind, raw)
    why_not = _why_whole(kind, raw, max_tokens)
    return Parsed(
        kind=kind,
        model=raw.get("model") or "",
        stream=_flag(raw.get("stream")),
        max_tokens=max_tokens,
        n=n,
        prompt_bytes=size,
        prompt_token_ids=token_ids,
        exact=token_ids is not None and not raw.get("truncate_prompt_tokens"),
        prefix=prefix,
        splittable=not why_not,
        why_not=why_not,
        ttft_slo_s=ttft_slo_s,
        tpot_slo_s=tpot_slo_s,
        settled=settled,
        answers=max(1, n * prompts),
        raw=raw,
        must_change=must_change,
        body=dump(raw) if must_change else body,
    )


def dump(value: object) -> bytes:
    """Compact JSON in UTF-8; escaped where the text can't be encoded (lone surrogates).

    Raises BodyError for more brackets than can be written: a few less can be read.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")
    except RecursionError:
        raise odd_json() from None


def _read(body: bytes) -> dict[str, Any]:
    try:
        raw = _decoded(body.removeprefix(BOM_UTF8).decode())
    except UnicodeDecodeError as error:
        message = f"The body must be UTF-8: {error.reason} at byte {error.start}."
        raise BodyError(400, message, code="invalid_json") from None
    except json.JSONDecodeError as error:
        message = f"The body must be JSON: {error.msg} at character {error.pos}."
        raise BodyError(400, message, code="invalid_json") from None
    except (ValueError, RecursionError):  # a number of too many digits; too many brackets
        raise odd_json() from None
    if not isinstance(raw, dict):
        raise BodyError(400, "The body must be a JSON object.", code="invalid_json")
    return raw


def odd_json() -> BodyError:
    """What is JSON, and yet can't be read or written."""
    message = "The body must be JSON with ordinary numbers and nesting."
    return BodyError(400, message, code="invalid_json")


def _decoded(text: str) -> object:
    """As json.loads, without its two searches for white space where there is none."""
    value, end = _DECODE(text, len(text) - len(text.lstrip(_SPACE)))
    if end < len(text) and (more := text[end:].lstrip(_SPACE)):
        raise json.JSONDecodeError("Extra data", text, len(text) - len(more))
    return value


def _check(kind: Kind, raw: dict[str, Any]) -> None:
    """Refuse what leaves nothing to route by."""
    model = raw.get("model")
    if model is not None and not isinstance(model, str):
        raise BodyError(400, "`model` must be a string.", "model", "invalid_type")
    if kind in {"chat", "messages"} and not isinstance(raw.get("messages"), list):
        raise BodyError(400, "`messages` must be a list of messages.", "messages", "invalid_type")
    if kind == "responses" and not isinstance(raw.get("input"), str | list):
        raise BodyError(
            400, "`input` must be a string or a list of items.", "input", "invalid_type"
        )
    if kind == "completions" and raw.get("prompt") is None and raw.get("prompt_embeds") is None:
        raise BodyError(400, "`prompt` must be given.", "prompt", "missing")


def _strip(fields: dict[str, Any]) -> bool:
    """Take out what a client may not say; whether there was anything."""
    if _TRANSFER.isdisjoint(fields):
        return False
    for name in _TRANSFER & fields.keys():
        del fields[name]
    return True


def _why_whole(kind: Kind, raw: dict[str, Any], max_tokens: int | None) -> str:
    """Why the request must not be split; empty if it may.

    Either the handoff can't carry it (one handoff is one prompt and one answer), or the two
    engines might see different prompts, and KV of another prompt gives wrong answers silently.
    """
    own = _why_whole_responses(raw) if kind == "responses" else _why_whole_sampling(kind, raw)
    if kind != "responses" and not own and max_tokens == 0:
        own = "no output tokens"
    return own or _why_whole_tools(raw)


def _why_whole_sampling(kind: Kind, raw: dict[str, Any]) -> str:
    for name in () if _SAMPLING.isdisjoint(raw) else [name for name in raw if name in _SAMPLING]:
        value = raw[name]
        if value is None:
            continue
        if name in _ONE_ONLY and integer(value) != 1:
            return name
        if name in _NEVER or (name in _UNSET_ONLY and value):
            return name
    return "list of prompts" if kind == "completions" and _prompts(raw.get("prompt")) != 1 else ""


def _why_whole_responses(raw: dict[str, Any]) -> str:
    for name in ("background", "previous_response_id"):
        if raw.get(name):
            return name  # lives in one engine's memory
    if raw.get("truncation") not in (None, "disabled"):
        return "truncation"
    tools = raw.get("tools")
    for tool in tools if isinstance(tools, list) else []:
        # The engine calls these itself and generates again, with the same handoff parameters.
        if not isinstance(tool, dict) or tool.get("type") not in _CLIENT_TOOLS:
            return "tools run by the engine"
    return ""


def _why_whole_tools(raw: dict[str, Any]) -> str:
    """A forced tool must not reach a prefill leg, and can't be taken out of it.

    Kept, its one token of an answer is no tool call and some parsers fail on it. Replaced by
    `auto` it needs a flag on the engine; by `none`, engines may leave the tools out of the
    prompt; and some models print it into the prompt.
    """
    choice = raw.get("tool_choice")
    if isinstance(choice, dict) and "type" in choice:
        choice = choice["type"]
    return "" if choice in (None, "auto", "none") else "forced tool_choice"


def _prompts(prompt: object) -> int:
    if not isinstance(prompt, list) or (prompt and type(prompt[0]) is int):
        return 1
    return len(prompt)


def _max_tokens(kind: Kind, raw: dict[str, Any]) -> int | None:
    for name in _ANSWER_TOKENS[kind]:
        if raw.get(name) is not None:
            return integer(raw[name])
    return None


def _flag(value: object) -> bool:
    """A yes or no as the engine reads it."""
    if isinstance(value, str):
        return value.lower() in _TRUE
    return isinstance(value, bool | int | float) and value == 1
