"""What of a changed file waits for a restart: settings that are used once, at the start."""

from typing import Any, Final

from headway.config.fleet import Fleet
from headway.config.model import Config, Router
from headway.config.reading import form

ROUTER_AT_START: Final = ("host", "port", "admin_port", "keep_alive_s", "seed")
"""Settings of [router] that count from its next start. All others count at once."""


def waiting(start: Config, now: Config, *, fleet: bool = False) -> tuple[str, ...]:
    """Settings that differ from those of the start and count from the next one, in words.

    start: what the process was started with. now: what the file says.
    fleet: of `headway up`, whose [fleet] counts from its start too.
    """
    found = [_differing("router", name, start.router, now.router) for name in ROUTER_AT_START]
    found.append(_tls(start.router, now.router))
    if fleet:
        names = [setting.name for setting in form(Fleet).settings]
        found += [_differing("fleet", name, start.fleet, now.fleet) for name in names]
    return tuple(each for each in found if each)


def _differing(section: str, name: str, start: object, now: object) -> str:
    old, new = getattr(start, name), getattr(now, name)
    return f"{section}.{name} stays {_text(old)}, not {_text(new)}" if old != new else ""


def _tls(start: Router, now: Router) -> str:
    if (start.tls is None) == (now.tls is None):
        return ""
    return f"router.tls stays {'off' if start.tls is None else 'on'}"


def _text(value: Any) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
