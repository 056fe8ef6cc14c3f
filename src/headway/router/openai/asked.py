"""Puts what a request asks for itself within what its client may ask: a priority and limits.

Values are read as vLLM 0.32 reads them. Its parser is ours: of a name that is there twice both
take the last, so a body in which nothing is wrong can be sent as it came.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from headway.core.client_range import UNASKED, ClientRange, nearest, told
from headway.core.slo import TPOT_ARGUMENT, TTFT_ARGUMENT, asked_s
from headway.router.wire.errors import BodyError
from headway.router.wire.headers import PRIORITY_HEADER

PRIORITY: Final = "priority"
_IN_HEAD: Final = PRIORITY_HEADER.decode()


class Terms(NamedTuple):
    """What a request's client may ask for, and what the request's head asks for.

    head_priority: the header's, which counts before the body's, as for vLLM; None without one.
    """

    allowed: ClientRange
    head_priority: int | None = None

    @property
    def ask_nothing(self) -> bool:
        """Whether a request whose body asks for nothing has no priority at all."""
        return self.head_priority is None and self.allowed.default_priority == UNASKED


class Settled(NamedTuple):
    """What became of what a request asks for.

    priority: what the engine is told in the header, which some paths read and some don't; None if
        nobody asks for any.
    changed: the body isn't what the client sent.
    clamped: the kinds (`priority`, `ttft`, `tpot`) that were outside the client's range.
    """

    priority: int | None = None
    changed: bool = False
    clamped: tuple[str, ...] = ()


_NOTHING: Final = Settled()


class BeyondRange(BodyError):  # noqa: N818 - the name says what happened
    """A request asks for what its client may not have. kind: as in `Settled.clamped`."""

    def __init__(self, kind: str, param: str, message: str) -> None:
        super().__init__(400, message, param, "out_of_range")
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as what it was made of."""
        return BeyondRange, (self.kind, self.param, self.message)


def settle(raw: dict[str, Any], terms: Terms) -> Settled:
    """Change the body of a request to one of ENDPOINTS, as far as it must be.

    All of these paths read the header, so a priority that the body doesn't name stays out of it.
    Raises BodyError for a priority that isn't a whole number, BeyondRange where that is refused.
    """
    own = raw.get("vllm_xargs")
    if own is None and PRIORITY not in raw and terms.ask_nothing:
        return _NOTHING
    clamped: list[str] = []
    changed = isinstance(own, dict) and _settle_limits(own, terms.allowed, clamped)
    priority = _priority(raw, terms, clamped)
    if PRIORITY in raw:
        changed |= _write(raw, priority)
    return Settled(priority, changed, tuple(clamped))


def settle_passed(value: object, terms: Terms) -> Settled:
    """Change a body that passes through, as far as it must be; None for one that isn't read.

    Most of these paths don't read the header, so the priority is written into the body. Some have
    limits in other places, so those are looked for at any depth. Raises as `settle`.
    """
    clamped: list[str] = []
    changed = False
    for each in objects(value):
        changed |= _settle_limits(each, terms.allowed, clamped)
    fields = value if isinstance(value, dict) else {}
    priority = _priority(fields, terms, clamped)
    changed |= _write(fields, priority) and fields is value
    return Settled(priority, changed, tuple(clamped))


def objects(value: object) -> Iterator[dict[str, Any]]:
    """All objects in it, at any depth. Whoever gets one may change it before the next."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            yield each
            todo += each.values()
        elif isinstance(each, list):
            todo += each


def integer(value: object) -> int | None:
    """A number as the engine reads it ("16", 16.0 and true count too); None if it isn't one."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and len(value) < 20 and value.isascii():
        return int(value) if value.removeprefix("-").isdigit() else None
    return None


def _priority(fields: dict[str, Any], terms: Terms, clamped: list[str]) -> int | None:
    """What counts; None if nobody asks for any. Null in the body asks for none."""
    allowed, asked, param = terms.allowed, terms.head_priority, _IN_HEAD
    if asked is None:
        value, param = fields.get(PRIORITY), PRIORITY
        if value is None:
            default = allowed.default_priority
            return None if default == UNASKED else default
        asked = integer(value)
        if asked is None:
            message = "`priority` must be a whole number."
            raise BodyError(400, message, PRIORITY, "invalid_type")
    granted = nearest(asked, allowed.priority)
    if granted != asked:
        _beyond("priority", param, told(allowed.priority), allowed, clamped)
    return granted


def _write(fields: dict[str, Any], priority: int | None) -> bool:
    """Whether it had to be written there."""
    if priority is None or fields.get(PRIORITY) == priority:
        return False
    fields[PRIORITY] = priority
    return True


def _settle_limits(own: dict[str, Any], allowed: ClientRange, clamped: list[str]) -> bool:
    """Whether a limit had to change. One that is no positive number would be ignored, or (true)
    be taken for one: it is taken out.
    """
    changed = False
    for kind, name, ends in (
        ("ttft", TTFT_ARGUMENT, allowed.ttft_slo_s),
        ("tpot", TPOT_ARGUMENT, allowed.tpot_slo_s),
    ):
        if name not in own:
            continue
        asked = asked_s(own[name])
        if asked is None:
            del own[name]
            changed = True
        elif (granted := nearest(asked, ends)) != asked:
            _beyond(kind, name, told(ends, " s"), allowed, clamped)
            own[name] = granted
            changed = True
    return changed


def _beyond(
    kind: str, param: str, range_told: str, allowed: ClientRange, clamped: list[str]
) -> None:
    if allowed.refuses:
        raise BeyondRange(kind, param, f"`{param}` must be {range_told}.")
    clamped.append(kind)
