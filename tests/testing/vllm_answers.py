"""What vLLM answers, in the forms of its APIs."""

import json

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


def answer(request, value, status=200, headers=()):
    request.respond(status, [JSON, *headers], json.dumps(value).encode())


def error(request, status, message="no", headers=(), **more):
    answer(request, {"error": {"message": message, **more}}, status, headers)


def usual(engine, request, seen):
    """The answer of an engine in good health."""
    if seen.path not in CHOICES:
        answer(request, {"path": seen.path, "got": len(seen.body)})
        return
    if seen.json.get("model") != engine.model:
        error(request, 404, "The model does not exist.", type="NotFoundError", code=404)
    elif seen.prefills:
        answer(request, {"usage": usage(5, 1), "kv_transfer_params": handoff(engine)})
    elif seen.json.get("stream"):
        request.start(200, [EVENTS])
        for event in events(seen):
            request.write(event)
        request.finish()
    else:
        whole = dict(CHOICES[seen.path](seen))
        answer(request, whole | {"kv_transfer_params": None})


def handoff(engine):
    number = next(engine.handoffs)
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "e",
        "remote_request_id": f"handoff-{number}",
        "remote_host": "10.9.8.7",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_block_ids": [[number, number + 1]],
    }


def usage(prompt, completion, cached=None):
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": details,
    }


WORDS = ["Zwölf", " große", " 🦊", " boxen"]


def chat(seen):
    asked = seen.json
    message = {"role": "assistant", "content": "".join(WORDS)}
    if asked.get("tools"):
        call = {"name": "weather", "arguments": '{"city": "Köln"}'}
        message["tool_calls"] = [{"id": "call-1", "type": "function", "function": call}]
    logprobs = None
    if asked.get("logprobs"):
        logprobs = {"content": [logprob(index) for index in range(len(WORDS))]}
    choices = [
        {"index": i, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
        for i in range(asked.get("n") or 1)
    ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"],
        "choices": choices,
        "usage": usage(5, len(WORDS)),
    }


def logprob(index):
    word = WORDS[index]
    return {"token": word, "logprob": -0.5 * index, "bytes": None, "top_logprobs": []}


def completions(seen):
    choice = {"index": 0, "text": "".join(WORDS), "logprobs": None, "finish_reason": "stop"}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": seen.json["model"],
        "choices": [choice],
        "usage": usage(5, len(WORDS)),
    }


def responses(seen):
    text = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
    message = {"type": "message", "id": "msg-1", "role": "assistant", "status": "completed"}
    return {
        "id": "resp-1",
        "object": "response",
        "created_at": 1,
        "model": seen.json["model"],
        "status": "completed",
        "output": [message | {"content": [text]}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 9,
        },
    }


def messages(seen):
    return {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "model": seen.json["model"],
        "content": [{"type": "text", "text": "".join(WORDS)}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": len(WORDS)},
    }


CHOICES = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/responses": responses,
    "/v1/messages": messages,
}
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16},
}


def body_for(path, **more):
    return json.dumps({"model": "m", **BODIES[path], **more}).encode()


def event(value, name=None):
    start = f"event: {name}\n" if name else ""
    return f"{start}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def events(seen):
    """The events of a stream."""
    if seen.path == "/v1/messages":
        yield from message_events(seen)
        return
    for index, word in enumerate(WORDS):
        delta = {"role": "assistant", "content": word} if not index else {"content": word}
        logprobs = {"content": [logprob(index)]} if seen.json.get("logprobs") else None
        last = "stop" if index == len(WORDS) - 1 else None
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": last}
        yield event(chunk(seen, [choice]))
    if (seen.json.get("stream_options") or {}).get("include_usage"):
        yield event(chunk(seen, []) | {"usage": usage(5, len(WORDS))})
    yield b"data: [DONE]\n\n"


def chunk(seen, choices):
    kind = "chat.completion.chunk" if "chat" in seen.path else "text_completion"
    if "chat" not in seen.path:
        choices = [{**c, "text": c["delta"]["content"]} for c in choices]
    head = {"id": "c-1", "object": kind, "created": 1, "model": seen.json["model"]}
    return head | {"choices": choices}


def message_events(seen):
    start = messages(seen) | {"content": [], "stop_reason": None}
    yield event({"type": "message_start", "message": start}, "message_start")
    block = {"type": "text", "text": ""}
    value = {"type": "content_block_start", "index": 0, "content_block": block}
    yield event(value, "content_block_start")
    for word in WORDS:
        delta = {"type": "text_delta", "text": word}
        value = {"type": "content_block_delta", "index": 0, "delta": delta}
        yield event(value, "content_block_delta")
    yield event({"type": "content_block_stop", "index": 0}, "content_block_stop")
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    value = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 4}}
    yield event(value, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")
