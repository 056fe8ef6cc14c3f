"""How what an examination finds is told."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from headway.core.reports import DoctorReport, Finding


def tell(findings: Iterable[Finding]) -> Iterator[str]:
    """The findings as lines, neighbours about the same under one heading."""
    for about, group in groupby(findings, lambda finding: finding.about):
        yield about
        for finding in group:
            yield f"  {finding.severity:<8} {finding.what}"
            if finding.then:
                yield f"           next: {finding.then}"


def report(findings: Sequence[Finding]) -> DoctorReport:
    """The findings, and how many are bad."""
    counts = Counter(finding.severity for finding in findings)
    return DoctorReport(
        findings=tuple(findings), errors=counts["error"], warnings=counts["warning"]
    )


def summary(report: DoctorReport) -> str:
    """How many of which severity, in a line."""
    counts = {"error": report.errors, "warning": report.warnings}
    said = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
    return ", ".join(said) or "nothing to do"
