"""What `headway status` shows: the supervisor's view of the fleet, and the router's."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headway.core.json_shape import ShapeError
from headway.core.slo import Verdict
from headway.core.status import (
    EngineStatus,
    FleetStatus,
    RoutedEngine,
    RouterState,
    StatusReport,
    read,
)
from headway.fleet.net.http_sync import HttpServer
from headway.fleet.operate import execution, logs, start_progress
from headway.fleet.operate.execution import Execution
from headway.fleet.operate.goodput import Goodput, Recent

_TIMEOUT_S: Final = 2.0
_HEADS: Final = ("POOL", "ENGINE", "ROLE", "STATE", "LOAD", "KV", "RESTARTS", "DECODES", "WHERE")
_UNREAD: Final = "none"
"""The router's length class of requests that it refused unread."""
_WHY: Final[Mapping[str, str]] = {
    Verdict.TTFT: "with a late first token",
    Verdict.TPOT: "with slow tokens",
    Verdict.TOTAL: "with a late answer",
    Verdict.ERROR: "failed",
    Verdict.LEFT_WAITING: "whose clients left waiting",
}
_DECODES: Final = frozenset({"both", "decode"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that is known of a fleet at one moment.

    router: what the router says of itself, None where it doesn't answer. goodput: by length class,
    of all under "". executions: how engines run their model, by name.
    """

    fleet: FleetStatus
    router: RouterState | None = None
    goodput: Mapping[str, Goodput] = field(default_factory=dict)
    executions: Mapping[str, Execution] = field(default_factory=dict)

    def report(self) -> StatusReport:
        """All of it, for programs."""
        return StatusReport(
            fleet=self.fleet,
            router=self.router,
            goodput={length or "all": each.status() for length, each in self.goodput.items()},
            decodes={name: str(run) for name, run in self.executions.items()},
        )


def text(seen: Seen) -> str:
    """For people: the fleet, its goodput, a line an engine, and what is to be said about them."""
    fleet = seen.fleet
    engines = fleet.engines
    ready = sum(engine.state == "ready" for engine in engines)
    doing = "stopping" if fleet.stopping else fleet.busy
    lines = [
        f"fleet {fleet.name}: {ready} of {len(engines)} engines ready; {_endpoint(seen)}",
        *([f"{doing} is under way"] if doing else []),
        *(f"{each}, until headway down and headway up" for each in fleet.waiting),
        *([_goodput(seen.goodput)] if seen.goodput else []),
        "",
        *(_columns([_HEADS, *(_cells(engine, seen) for engine in engines)]) if engines else []),
        *_elsewhere(seen),
    ]
    notes: dict[str, list[str]] = {}
    router = fleet.router
    if router.state != "ready":
        notes[f"{router.state}{_because(router.reason)}"] = ["router"]
    for engine in engines:
        for note in _notes(engine, seen):
            notes.setdefault(note, []).append(engine.name)
    told = [f"  {', '.join(names)}: {note}" for note, names in notes.items()]
    return "\n".join([*lines, *([""] if told else []), *told])


def seen(fleet: FleetStatus, recent: Recent) -> Seen:
    """What is known of a fleet, its router asked."""
    runs = {each.name: execution.of(Path(each.log)) for each in fleet.engines}
    return Seen(
        fleet=fleet,
        router=_state(fleet.admin),
        goodput=recent.now(),
        executions={name: run for name, run in runs.items() if run is not None},
    )


def _state(admin: str) -> RouterState | None:
    """What the router at this admin URL says; None where it says nothing that can be read."""
    answer = HttpServer(admin).get("/state", _TIMEOUT_S)
    if answer is None or answer.status != 200:
        return None
    with contextlib.suppress(ShapeError):
        return read(RouterState, answer.body)
    return None


def doing(engine: EngineStatus) -> str:
    """An engine's state; of one that starts, how far it is."""
    if engine.state != "starting":
        return engine.state
    said = logs.end_of(Path(engine.log), logs.WHOLE_BYTES)
    now = start_progress.after(start_progress.StartProgress(), said)
    # Ready is who answers /health, and that is the supervisor's to say.
    return start_progress.PREPARING if now.phase == start_progress.READY else str(now)


def _endpoint(seen: Seen) -> str:
    strategy = f" ({seen.router.strategy})" if seen.router and seen.router.strategy else ""
    return f"{seen.fleet.endpoint}{strategy}"


def _goodput(goodput: Mapping[str, Goodput]) -> str:
    everything = goodput[""]
    if everything.attainment is None:
        return f"goodput 0/s: no requests in the last {everything.over_s:.0f} s"
    by_length = ", ".join(
        f"{length} {each.attainment:.0%}"
        for length, each in goodput.items()
        if length not in {"", _UNREAD} and each.attainment is not None
    )
    missed = ", ".join(f"{count} {_WHY.get(why, why)}" for why, count in everything.missed.items())
    return (
        f"goodput {everything.met_per_s:.2f}/s: {everything.attainment:.0%} of "
        f"{everything.sent_per_s:.2f} requests/s met all limits in the last "
        f"{everything.over_s:.0f} s"
        + (f" ({by_length})" if by_length else "")
        + (f"; missed: {missed}" if missed else "")
    )


def _cells(engine: EngineStatus, seen: Seen) -> tuple[str, ...]:
    routed = _routed(engine, seen)
    run = seen.executions.get(engine.name)
    return (
        engine.pool,
        engine.name,
        engine.role,
        f"{doing(engine)} {_for(engine.since_s)}",
        _load(routed),
        _kv(routed),
        str(engine.restarts),
        str(run) if run and engine.role in _DECODES else "-",
        _where(engine),
    )


def _for(seconds: float) -> str:
    """A time in its largest unit, as in `3 min`."""
    for unit, size_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _routed(engine: EngineStatus, seen: Seen) -> RoutedEngine | None:
    """What the router knows of it."""
    return seen.router.engine(engine.router_id) if seen.router else None


def _load(routed: RoutedEngine | None) -> str:
    if routed is None:
        return "-"
    waiting = f", {routed.reported.waiting} waiting" if routed.reported.waiting else ""
    return f"{routed.work.requests}{waiting}"


def _kv(routed: RoutedEngine | None) -> str:
    capacity = routed.reported.kv_capacity_tokens if routed else None
    return f"{routed.work.kv_tokens / capacity:.0%}" if routed and capacity else "-"


def _where(engine: EngineStatus) -> str:
    """Its address and its devices; Ray keeps those to itself."""
    address = urlsplit(engine.url).netloc
    if engine.emulated:
        return f"{address}, {engine.emulated}"
    return f"{address} on {_devices(engine.devices)}" if engine.devices else address


def _devices(devices: Sequence[int]) -> str:
    """`0-3,6`."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and runs[-1][-1] == device - 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _elsewhere(seen: Seen) -> list[str]:
    """Engines the router knows that the fleet didn't start."""
    own = {engine.router_id for engine in seen.fleet.engines}
    return [
        f"{each.id}  {pool.role}  {each.reason}  load {_load(each)}  running elsewhere"
        for pool in (seen.router.pools if seen.router else ())
        for each in pool.engines
        if each.id not in own
    ]


def _notes(engine: EngineStatus, seen: Seen) -> list[str]:
    """What is to be said about an engine."""
    ready = engine.state == "ready"
    notes = [engine.reason] if engine.reason and not ready else []
    if ready and engine.note:
        notes.append(engine.note)
    routed = _routed(engine, seen)
    if ready and routed and not routed.ready:
        notes.append(f"gets no requests: {routed.reason}")
    elif routed and routed.health == "degraded":
        notes.append(f"gets only what no other engine can serve: {routed.reason}")
    run = seen.executions.get(engine.name)
    slow = execution.slow_decode(run) if run and engine.role in _DECODES else None
    return [*notes, slow] if slow else notes


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
