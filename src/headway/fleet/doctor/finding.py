"""What an examination finds, and how it is told."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

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


def tell(findings: Iterable[Finding]) -> Iterator[str]:
    """The findings as lines, neighbours about the same under one heading."""
    for about, group in groupby(findings, lambda finding: finding.about):
        yield about
        for finding in group:
            yield f"  {finding.severity:<8} {finding.what}"
            if finding.then:
                yield f"           next: {finding.then}"


def summary(findings: Iterable[Finding]) -> str:
    """How many of which severity, in a line."""
    counts = {"error": 0, "warning": 0}
    for finding in findings:
        if finding.severity in counts:
            counts[finding.severity] += 1
    said = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
    return ", ".join(said) or "nothing to do"
