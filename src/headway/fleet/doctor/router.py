"""A router that runs: what it says of its engines, and whether a request through it moves KV."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headway.core.json_shape import ShapeError
from headway.core.reports import Finding
from headway.core.status import RouterState, read
from headway.fleet.doctor import engines as engine_checks
from headway.fleet.doctor.engines import EngineTarget
from headway.fleet.net.http_sync import HttpAnswer, HttpServer

ABOUT: Final = "router"
CLIENT_KEY: Final = "OPENAI_API_KEY"
"""Variable with the key for a router that asks for one, as OpenAI's clients have it."""
_PROBE_S: Final = 180.0
_PROMPT_WORDS: Final = 150
_COUNTED_S: Final = 5.0
"""How long until what an engine received shows in its metrics."""
_AGAIN_S: Final = 0.5


def examine(
    admin: HttpServer,
    server: HttpServer,
    engines: Sequence[EngineTarget],
    *,
    splits: bool,
    kv_bytes: Callable[[Sequence[EngineTarget]], float] = engine_checks.kv_bytes,
) -> Iterator[Finding]:
    """The router's own view, then a request through it.

    admin: its admin port. server: where clients connect. engines: those it knows.
    """
    said = admin.get("/state", engine_checks.ASK_S)
    if said is None or said.status != 200:
        then = "headway logs router; in a pod: kubectl logs"
        yield Finding("error", ABOUT, f"its admin port doesn't answer ({admin.url})", then)
    else:
        try:
            yield from of_state(read(RouterState, said.body))
        except ShapeError as error:
            then = "run the headway that the router runs"
            yield Finding("error", ABOUT, f"what its admin port says: {error}", then)
    receivers = [target for target in engines if target.role != "prefill"]
    before = kv_bytes(receivers)
    answer = probe(server)
    moved = 0.0
    if splits and answer is not None and answer.status == 200:
        moved = _moved(receivers, before, kv_bytes)
    yield of_probe(answer, moved, splits=splits, url=server.url)


def of_state(state: RouterState) -> Iterator[Finding]:
    """Findings from the answer of `GET /state`."""
    known = list(state.engines)
    out = [engine for engine in known if not engine.ready]
    for engine in out:
        said = f"{engine.id} gets no requests: {engine.reason}"
        then = "headway undrain" if engine.draining else "headway logs of the engine"
        yield Finding("note" if engine.draining else "warning", ABOUT, said, then)
    for engine in known:
        if engine.ready and engine.health == "degraded":
            said = f"{engine.id} gets only what no other engine can serve: {engine.reason}"
            then = "it may be busy with one long step, or hung: headway logs of the engine"
            yield Finding("warning", ABOUT, said, then)
    if known and not out:
        yield Finding("ok", ABOUT, f"sends requests to every engine ({len(known)})")


def probe(server: HttpServer) -> HttpAnswer | None:
    """The answer to a request whose prompt no cache has; None without one."""
    listed = server.get("/v1/models", engine_checks.ASK_S)
    if listed is None or listed.status != 200:
        return listed
    said = listed.json()
    models = engine_checks.dicts(said.get("data") if isinstance(said, dict) else None)
    if not models:
        return None
    drawn = random.Random()
    prompt = " ".join(str(drawn.randrange(10_000)) for _ in range(_PROMPT_WORDS))
    body = {"model": models[0].get("id"), "prompt": prompt, "max_tokens": 4, "temperature": 0}
    return server.post("/v1/completions", body, _PROBE_S)


def of_probe(answer: HttpAnswer | None, moved: float, *, splits: bool, url: str) -> Finding:
    """The finding from a request through the router.

    moved: bytes of KV that engines received meanwhile.
    """
    if answer is None:
        said = f"a request through it got no answer ({url})"
        return Finding("error", ABOUT, said, "headway status; headway logs router")
    if answer.status == 401:
        said = "it asks for a key, so no request was tried"
        return Finding("note", ABOUT, said, f"set {CLIENT_KEY} to a client's key and run it again")
    if answer.status != 200:
        said = (
            f"a request through it failed: status {answer.status}: {engine_checks.message(answer)}"
        )
        return Finding("error", ABOUT, said, "headway status; headway logs router")
    route = answer.headers.get("x-headway-route", "")
    if splits:
        return _of_kv(route, moved)
    return Finding("ok", ABOUT, f"a request through it was answered ({route or 'no receipt'})")


def _of_kv(route: str, moved: float) -> Finding:
    taken = f" ({route})" if route else ""
    if moved > 0:
        return Finding("ok", ABOUT, f"KV moves: {moved / 1e6:.1f} MB for a request{taken}")
    if route and 'reason="split"' not in route:
        then = "see its reason in docs/router.md; headway status shows which engines are ready"
        return Finding("warning", ABOUT, f"a request wasn't split, so no KV moved{taken}", then)
    then = "headway logs of a decode engine: look for NIXL, UCX and the side channel's address"
    said = f"no KV moved: the decode engine computed the prompt again{taken}"
    return Finding("error", ABOUT, said, then)


def _moved(
    engines: Sequence[EngineTarget],
    before: float,
    kv_bytes: Callable[[Sequence[EngineTarget]], float],
) -> float:
    """What the engines have received since; waits a little until it shows."""
    deadline_s = time.monotonic() + _COUNTED_S
    while (moved := kv_bytes(engines) - before) <= 0 and time.monotonic() < deadline_s:
        time.sleep(_AGAIN_S)
    return max(0.0, moved)
