"""What `benchmarks/fleet.py` measures, and its targets."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from headway.bench.fleet.traffic import TrafficAnswer
from headway.bench.judge.spread import Spread, spread
from headway.bench.report import document as report
from headway.bench.report.document import Goal

START: Final = "start"
KILLED: Final = "killed"
ROLLING: Final = "rolling"
LEFT: Final = "left"
PARTS: Final = (START, KILLED, ROLLING, LEFT)
START_RATIO: Final = 1.1
AROUND_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class FleetStart:
    """Seconds to a first token: of `make serve`, and of its engines by themselves."""

    serve_s: float
    engines_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """One process of an engine killed under traffic.

    around_s: until the router sent it nothing more. Requests: in the time from SETTLE_S before
    until the engine was back.
    """

    part: str
    engine: str
    around_s: float | None
    requests: int
    unserved: int
    cut: int
    slowest_first_byte_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Rolling:
    """A pool restarted under traffic. failed: unserved or cut; refused: with Retry-After."""

    replicas: int
    took_s: float
    requests: int
    failed: int
    refused: int
    slowest_first_byte_s: float


@dataclass(frozen=True, slots=True)
class FleetEnding:
    """One fleet's end. by: what ended it; left: its processes that outlived it."""

    by: str
    left: int


@dataclass(slots=True)
class Measured:
    """Everything."""

    starts: list[FleetStart]
    kills: list[Kill]
    rolls: list[Rolling]
    endings: list[FleetEnding]


def slowest(answers: Sequence[TrafficAnswer]) -> float:
    """The longest wait for a first byte, seconds."""
    return max((each.first_s - each.sent_s for each in answers if each.first_s), default=0.0)


def goals(found: Measured, parts: Sequence[str] = PARTS) -> list[Goal]:
    """The targets of these parts."""
    return [goal for part, goal in _goals(found) if part in parts]


def _goals(found: Measured) -> list[tuple[str, Goal]]:
    def at_most(part: str, name: str, bound: float, measured: Spread | None) -> tuple[str, Goal]:
        return part, Goal(name, bound, at_most=True, measured=measured)

    of_two = [each for each in found.rolls if each.replicas > 1]
    of_one = [each for each in found.rolls if each.replicas == 1]
    return [
        at_most(
            START,
            "second make serve to a first token / its engines by themselves",
            START_RATIO,
            spread([each.serve_s / each.engines_s for each in found.starts]),
        ),
        at_most(
            KILLED,
            "engine killed: requests failed that hadn't got a byte",
            0.0,
            worst([float(each.unserved) for each in found.kills]),
        ),
        at_most(
            KILLED,
            "engine killed: until routed around, s, slowest",
            AROUND_S,
            worst([each.around_s for each in found.kills]),
        ),
        at_most(
            ROLLING,
            "rolling restart, pool of two: failed or refused",
            0.0,
            worst([float(each.failed + each.refused) for each in of_two]),
        ),
        at_most(
            ROLLING,
            "rolling restart, pool of one: cut or refused without Retry-After",
            0.0,
            worst([float(each.failed) for each in of_one]),
        ),
        at_most(
            LEFT,
            "processes left after an end",
            0.0,
            worst([float(each.left) for each in found.endings]),
        ),
    ]


def worst(values: Sequence[float | None]) -> Spread | None:
    """The largest as the value; None if one is missing, as it may have been the largest."""
    if None in values or not values:
        return None
    known = [value for value in values if value is not None]
    return Spread(max(known), min(known), max(known))


def tables(found: Measured) -> str:
    """All that was seen, a row each."""
    parts: list[tuple[Sequence[Any], Any]] = [
        (found.starts, FleetStart),
        (found.kills, Kill),
        (found.rolls, Rolling),
        (found.endings, FleetEnding),
    ]
    made = []
    for rows, kind in parts:
        names = [field.name for field in fields(kind)]
        made.append(report.table(names, [[getattr(row, n) for n in names] for row in rows]))
    return "\n\n".join(made)
