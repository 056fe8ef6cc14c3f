"""The ways in which a stub engine fails; each is the name of a scenario."""

REFUSALS = {"400": 400, "429": 429, "503": 503, "500": 500}
SILENT = ("hang before head", "die before head")
HEADED = ("hang after head", "die after head")
BROKEN = ("die after first byte", "die mid-event", "hang mid-stream")
PARAMS = ("no params", "null params", "mistyped params", "params without blocks", "wrong flag")
FIRST_EVENT = "500 in the first event"
COMMENTED = "500 behind a comment"
FLOODS = "floods"
"""More than any client takes."""
EMPTY = ("empty", "empty at close", "comments alone")
CUT = ("cut in chunks", "cut at close", "all but the end")
"""What is complete in form: its last chunk comes, or its connection ends in order."""
SAYS_SO = "error mid-stream"
STREAMED_ERROR = {
    "/v1/chat/completions": b'data: {"error":{"message":"the stub failed"}}\n\ndata: [DONE]\n\n',
    "/v1/completions": b'data: {"error":{"message":"the stub failed"}}\n\ndata: [DONE]\n\n',
    "/v1/responses": b'event: response.failed\ndata: {"type":"response.failed",'
    b'"response":{"status":"the stub failed"}}\n\n',
    "/v1/messages": b'event: error\ndata: {"type":"error","error":{"message":"the stub failed"}}'
    b"\n\ndata: [DONE]\n\n",
}
"""How vLLM's streams end that fail by themselves."""
FIRST_EVENTS = (FIRST_EVENT, COMMENTED)
FAULTS = (
    *("refuse", *REFUSALS, *FIRST_EVENTS, *SILENT, *HEADED, *BROKEN, *EMPTY, *CUT),
    "half json",
)
