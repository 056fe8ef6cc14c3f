"""What a stub engine answers."""

import json

MODEL = "m"
TOKENS = 5
"""Of every answer."""


def events_of(path, prompt_tokens=7, *, secret=False):
    """A stream's events, as bytes."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": TOKENS}
    if path == "/v1/messages":
        yield _event("message_start", message={"usage": {"input_tokens": prompt_tokens}})
        for i in range(TOKENS):
            yield _event("content_block_delta", index=0, delta={"text": f"t{i}"})
        yield _event("message_stop")
    elif path == "/v1/responses":
        yield _event("response.created", response={})
        yield _event("response.in_progress", response={})
        for i in range(TOKENS):
            yield _event("response.output_text.delta", delta=f"t{i}")
        done = {"usage": {"input_tokens": prompt_tokens, "output_tokens": TOKENS}}
        if secret:
            done["kv_transfer_params"] = {"secret": "host"}
        yield _event("response.completed", response=done)
    else:
        for i in range(TOKENS):
            choice = {"index": 0, "delta": {"content": f"t{i}"}, "finish_reason": None}
            yield b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()
        yield b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode()
        yield b"data: [DONE]\n\n"


def _event(kind, **fields):
    data = json.dumps({"type": kind, **fields}).encode()
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
