"""A configuration in words, for people who check one before they use it."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from headway.config.clients import EVERYONE
from headway.config.fleet import STARTING
from headway.config.lines import Path
from headway.config.model import Config, Pool, Router
from headway.config.reading import REQUIRED, UNSET, Setting, form, header
from headway.config.rules import warnings
from headway.core.client_range import told


def explain(config: Config) -> str:
    """What the router will do, then each setting with where it was set and what it means."""
    lines = [*_summary(config), ""]
    rows = [*_rows(config)]
    wide = max(len(text) for text, _, _ in rows if len(text) <= 48)
    from_wide = max(len(origin) for _, origin, _ in rows)
    for text, origin, meaning in rows:
        lines.append(f"  {text:<{wide}}  {origin:<{from_wide}}  {meaning}" if origin else text)
    found = warnings(config)
    if found:
        lines += ["", *(f"warning: {each}" for each in found)]
    return "\n".join(lines) + "\n"


def _summary(config: Config) -> Iterator[str]:
    router = config.router
    scheme = "https" if router.tls else "http"
    host = f"[{router.host}]" if ":" in router.host else router.host
    names = ", ".join(config.keys.names) or "nobody"
    keys = f"for those with a key: {names}" if config.keys else "no keys asked for"
    yield f"{scheme}://{host}:{router.port}, {keys}"
    yield f"{router.strategy}: {router.routing.meaning}"
    for pool in config.pools:
        count = len(pool.engines) or pool.replicas
        engines = "1 engine" if count == 1 else f"{count} engines"
        started = "" if pool.engines else f" to start, {_model(pool)}"
        yield f"  pool {pool.name}, {engines}{started}: {_duty(router, pool)}"
    slo = router.slo
    yield (
        f"on time: TTFT of at most max({slo.ttft_s:g} s, {slo.ttft_factor:g} x the prefill alone), "
        f"TPOT of at most {slo.tpot_s:g} s"
    )
    yield from told_clients(router)


def told_clients(router: Router) -> Iterator[str]:
    """What clients may ask for, a line for each range."""
    ranges = router.client_ranges
    for name, allowed in ranges.items():
        who = name
        if name == EVERYONE:
            who = "clients" if len(ranges) == 1 else "other clients"
        done = "refused" if allowed.refuses else "clamped"
        yield (
            f"{who} may ask for priority {told(allowed.priority)} "
            f"(default {allowed.default_priority}), "
            f"TTFT limits {told(allowed.ttft_slo_s, ' s')} and "
            f"TPOT limits {told(allowed.tpot_slo_s, ' s')}; more is {done}"
        )


def _model(pool: Pool) -> str:
    if pool.emulate:
        gpus = pool.tensor_parallel_size
        return f"{pool.model or 'a well-known model'} on {pool.emulate.said(gpus)}"
    return pool.model or "the bundled model"


def _duty(router: Router, pool: Pool) -> str:
    if router.routing.splits:
        return {
            "both": "prefills or decodes",
            "prefill": "prefills",
            "decode": "decodes, and serves whole what can't be split",
        }[pool.role]
    if pool.role == "prefill":
        return "idle"
    if router.routing.by_length and pool.max_prompt_tokens is not None:
        return f"prompts of up to {pool.max_prompt_tokens} uncached tokens"
    return "all longer prompts" if router.routing.by_length else "all prompts"


def _rows(config: Config) -> Iterator[tuple[str, str, str]]:
    """Setting, origin and meaning; a section's title has no origin."""
    if not all(pool.engines for pool in config.pools):
        yield from _section_rows(config, config.fleet, ("fleet",))
    yield from _section_rows(config, config.router, ("router",))
    for index, pool in enumerate(config.pools):
        hidden = STARTING if pool.engines else ("engines",)
        yield from _section_rows(config, pool, ("pool", index), hidden)


def _section_rows(
    config: Config, holder: Any, at: Path, hidden: Collection[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """Rows of a section and of those within; hidden: settings that say nothing here."""
    kind: type = type(holder)
    settings, sections, named = form(kind)
    yield header(at), "", ""
    for setting in settings:
        if setting.name not in hidden:
            yield _row(config, (*at, setting.name), setting, getattr(holder, setting.name))
    for name in sections:
        inner = getattr(holder, name)
        if inner is None:
            yield f"{header((*at, name))} (not set: off)", "", ""
        elif name not in hidden:
            yield from _section_rows(config, inner, (*at, name))
    for name in named:
        for own, inner in getattr(holder, name).items():
            yield from _section_rows(config, inner, (*at, name, own))


def _row(config: Config, path: Path, setting: Setting, value: object) -> tuple[str, str, str]:
    default = "missing" if setting.default is REQUIRED else "default"
    return f"{setting.name} = {_text(value)}", config.source.given(path) or default, setting.meaning


def _text(value: object) -> str:
    if value in UNSET:
        return "(not set)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.12g}" if isinstance(value, float) else str(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, Mapping):  # of the environment: values may be secrets
        return "{" + ", ".join(f"{name} = …" for name in value) + "}"
    return json.dumps(str(value), ensure_ascii=False)
