"""Histograms as Prometheus text has them: counts by upper bound, and percentiles of them."""

import re
from collections.abc import Mapping
from typing import Final

_BUCKET: Final = re.compile(r"^([a-z_:]+)_bucket\{([^}]*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def buckets(text: str, name: str, where: str) -> dict[float, float]:
    """Counts by upper bound of a histogram of /metrics, of its series labelled `where`."""
    found = {}
    for series, labels, count in _BUCKET.findall(text):
        named = dict(_LABEL.findall(labels))
        if series == name and named.get("where") == where:
            found[float(named["le"])] = float(count)
    return found


def bucket_percentile(
    before: Mapping[float, float], after: Mapping[float, float], percent: float
) -> float | None:
    """Of what was observed between two looks at a histogram, linear within a bucket.

    None if nothing was; the largest finite bound where it lies above all of them.
    """
    bounds = sorted(after)
    counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
    if not counts or counts[-1] <= 0:
        return None
    rank = counts[-1] * percent / 100
    low, below = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / max(count - below, 1e-9)
        low, below = bound, count
    return low
