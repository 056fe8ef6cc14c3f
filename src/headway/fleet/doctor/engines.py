"""Engines that run, asked one by one: ready, of which version, steered, with a clock that is right.

What is found is decided by pure functions of what each has answered.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

from headway.config import Config, engine_tls
from headway.core.batching.settings import STOCK
from headway.core.engine_metrics import NO_FAULTS, Fallback, parse_metrics
from headway.core.reports import Finding, Severity
from headway.fleet.net.http_sync import HttpAnswer, HttpServer

ABOUT: Final = "engines"
ASK_S: Final = 5.0
_GENERATE_S: Final = 120.0
"""For a token: a busy engine may have long prompts before it."""
_SKEW_S: Final = 2.0
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """An engine to ask. policy: of its pool, None where it isn't known."""

    name: str
    role: str
    server: HttpServer
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine answered.

    health: status of /health, None without an answer; the rest is then empty.
    skew_s: its clock less ours, None where it doesn't tell the time.
    generates: whether a request for a token was answered; `why` has the reason if not.
    steered: whether headway's scheduler counts its steps. fallback: those it left to vLLM.
    """

    target: EngineTarget
    health: int | None
    version: str = ""
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    skew_s: float | None = None
    generates: bool = False
    why: str = ""
    steered: bool = False
    fallback: Fallback = NO_FAULTS


def targets(
    config: Config, key: str | None, policies: Mapping[str, str | None]
) -> tuple[EngineTarget, ...]:
    """The engines in a router's file. key: that they ask for. policies: of pools, where known."""
    return tuple(
        EngineTarget(
            f"{pool.name}/{address.authority}",
            pool.role,
            HttpServer(str(address), key, context=context),
            policies.get(pool.name),
        )
        for pool in config.pools
        for context in [engine_tls(pool.tls) if pool.tls else None]
        for address in pool.engines
    )


def examine(asked: Sequence[EngineTarget]) -> Iterator[Finding]:
    """All engines and what pairs of them need."""
    if not asked:
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(asked))) as pool:
        facts = list(pool.map(ask, asked))
    for each in facts:
        yield from of_engine(each)
    yield from of_pairs(facts)


def ask(target: EngineTarget) -> Facts:
    """Ask an engine. A token is generated: its scheduler counts nothing before it has a step."""
    server = target.server
    health = server.get("/health", ASK_S)
    if health is None or health.status != 200:
        return Facts(target, health.status if health else None)
    version = _field(server.get("/version", ASK_S), "version")
    models = dicts(_field(server.get("/v1/models", ASK_S), "data"))
    why = _generate(server, str(models[0].get("id"))) if models else "it lists no model"
    told = server.get("/metrics", ASK_S)
    metrics = parse_metrics(told.body if told else b"")
    lengths = [n for each in models if isinstance(n := each.get("max_model_len"), int)]
    return Facts(
        target,
        health.status,
        version=str(version or ""),
        models=tuple(str(each.get("id")) for each in models),
        max_model_len=min(lengths, default=None),
        skew_s=skew_s(health),
        generates=not why,
        why=why,
        steered=metrics.steered,
        fallback=metrics.fallback,
    )


def _generate(server: HttpServer, model: str) -> str:
    """Have a token generated; why that failed, or nothing."""
    body = {"model": model, "prompt": "1 2 3", "max_tokens": 1, "temperature": 0}
    answer = server.post("/v1/completions", body, _GENERATE_S)
    if answer is None:
        return f"no answer within {_GENERATE_S:g} s"
    return "" if answer.status == 200 else f"status {answer.status}: {message(answer)}"


def dicts(listed: object) -> list[dict[str, Any]]:
    """The objects in a list of JSON; none in anything else."""
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def message(answer: HttpAnswer) -> str:
    """What an error's body says, on one short line."""
    said = answer.json()
    error = said.get("error") if isinstance(said, dict) else None
    text = error.get("message") if isinstance(error, dict) else None
    return " ".join(str(text or answer.body.decode("utf-8", "replace")).split())[:200]


def _field(answer: HttpAnswer | None, name: str) -> Any:
    said = answer.json() if answer and answer.status == 200 else None
    return said.get(name) if isinstance(said, dict) else None


def skew_s(answer: HttpAnswer) -> float | None:
    """How far the server's clock is ahead of ours, seconds; it tells whole seconds only."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5 - answer.at_s
    return None


def kv_bytes(asked: Sequence[EngineTarget]) -> float:
    """KV that these engines have received."""
    answers = [target.server.get("/metrics", ASK_S) for target in asked]
    return sum(parse_metrics(answer.body).kv_bytes for answer in answers if answer)


def of_engine(facts: Facts) -> Iterator[Finding]:
    """Findings about one engine."""
    name = facts.target.name
    logs = f"see its log (headway logs, or where {facts.target.server.url} runs)"
    if facts.health is None:
        yield Finding("error", ABOUT, f"{name} doesn't answer", f"start it, or {logs}")
        return
    if facts.health != 200:
        said = f"{name} isn't well: /health has status {facts.health}"
        yield Finding("error", ABOUT, said, logs)
        return
    if facts.generates:
        what = [f"{name} generates", f"vLLM {facts.version}" if facts.version else ""]
        what.append("headway's scheduler" if facts.steered else "vLLM's own scheduler")
        yield Finding("ok", ABOUT, ", ".join(filter(None, what)))
    else:
        yield Finding("error", ABOUT, f"{name} doesn't generate: {facts.why}", logs)
    if facts.generates and not facts.steered and facts.target.policy != STOCK:
        said = f"{name}: headway's scheduler isn't active, or its metrics are off"
        then = "start it with headway up, or as docs/your-own-vllm.md says"
        yield Finding("warning", ABOUT, said, then)
    if facts.fallback.steps or facts.fallback.aside:
        then = "report it with the traceback in its log; headway restart POOL steers it again"
        severity: Severity = "error" if facts.fallback.aside else "warning"
        yield Finding(severity, ABOUT, f"{name}: {facts.fallback}", then)
    if facts.skew_s is not None and abs(facts.skew_s) > _SKEW_S:
        way = "ahead of" if facts.skew_s > 0 else "behind"
        said = f"{name}: its clock is {abs(facts.skew_s):.0f} s {way} this machine's"
        then = "set clocks by NTP (chronyc tracking); logs and metrics can't be compared else"
        yield Finding("warning", ABOUT, said, then)


def of_pairs(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Findings about prefill and decode engines that are to hand KV over."""
    sides = {
        role: [each for each in facts if each.target.role == role and each.health == 200]
        for role in ("prefill", "decode")
    }
    before = len(sides["prefill"]) * len(sides["decode"])
    problems = [
        problem
        for sender in sides["prefill"]
        for receiver in sides["decode"]
        for problem in _pair_problems(sender, receiver)
    ]
    yield from problems
    if before and not problems:
        yield Finding("ok", ABOUT, "prefill and decode engines: version, model and context match")


def _pair_problems(sender: Facts, receiver: Facts) -> Iterator[Finding]:
    names = f"{sender.target.name} and {receiver.target.name}"
    if sender.version != receiver.version:
        said = f"{names}: vLLM {sender.version or '?'} and {receiver.version or '?'}"
        then = "use one version; KV of another isn't taken"
        yield Finding("error", ABOUT, said, then)
    if sender.models and receiver.models and not set(sender.models) & set(receiver.models):
        said = f"{names} serve different models: {sender.models[0]} and {receiver.models[0]}"
        yield Finding("error", ABOUT, said, "serve one model, under one name")
    longest, fits = sender.max_model_len, receiver.max_model_len
    if longest and fits and longest > fits:
        said = f"{names}: contexts of {longest} and {fits} tokens"
        then = f"set max_model_len = {fits} for prefill, or more for decode"
        yield Finding("warning", ABOUT, said, then)
