"""What `headway doctor --json` and `headway up --dry-run --json` print.

`doctor.schema.json` and `dry_run.schema.json` describe them. Fields may be added at any time;
`version` grows when one goes or means something else.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headway.core.json_shape import schema, to_json

VERSION: Final = 1
Severity = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    about: what it belongs to, as a heading: installation, machine, file, engines, router.
    what: what was found, on one line.
    then: the next step; empty where there is nothing to do.
    """

    severity: Severity
    about: str
    what: str
    then: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All findings, in the order in which they were made. errors, warnings: how many are that."""

    findings: tuple[Finding, ...]
    errors: int
    warnings: int
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProcess:
    """What would be run. Secrets are masked.

    set, unset: variables that differ from the environment of now. cores: those it is bound to;
    null: none. argv: the program and its arguments.
    """

    set: Mapping[str, str]
    unset: tuple[str, ...]
    cores: tuple[int, ...] | None
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine:
    """An engine that would be started. model: null for the bundled one. url, side_port: where it
    would listen, for requests and for KV. devices: GPUs or CPU cores; none where Ray chooses and
    where they are emulated. emulated: by what, else empty.
    """

    name: str
    pool: str
    role: str
    model: str | None
    url: str
    side_port: int
    devices: tuple[int, ...]
    process: PlannedProcess
    emulated: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunReport:
    """A fleet that would be started. router_file, router_settings: the path of the file that its
    router would read, and what would be in it.
    """

    fleet: str
    strategy: str
    engines: tuple[PlannedEngine, ...]
    router: PlannedProcess
    router_file: str
    router_settings: str
    version: int = VERSION


def written(report: DoctorReport | DryRunReport) -> str:
    """Its JSON."""
    return json.dumps(to_json(report), indent=1)


def schema_text(shape: type[DoctorReport | DryRunReport]) -> str:
    """What is stored beside this module to describe a report."""
    return json.dumps(schema(shape), indent=2) + "\n"
