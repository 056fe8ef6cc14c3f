"""How many tokens a prompt has, learned from the usage that engines report.

For each model and endpoint a line is fitted: tokens = overhead + rate * bytes. The
overhead is what a chat template adds; without it the many small requests of a chat
would make long prompts look longer than they are. The fit is least squares relative to
size, so it errs on neither side. As in `core/latency.py`, observations are kept as sums
in bins by size and each bin forgets on its own: a stretch of short prompts doesn't wash
out what is known about long ones.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

PRIOR_BYTES_PER_TOKEN: Final = 4.0
PRIOR_BYTES: Final = (256, 4_096, 65_536)
"""Sizes at which the prior counts as an observation of small weight."""
PRIOR_WEIGHT: Final = 0.1
MEMORY: Final = 0.85
"""What a bin keeps when an observation joins it; about seven count."""
SMALL_BYTES: Final = 64
"""Errors count relative to the size plus this."""
EARLY: Final = 8
"""Observations until which a wide range is believed."""
EARLY_OUTLIER: Final = 8.0
OUTLIER: Final = 2.0
"""An observation beyond this many times the estimate, or below its inverse, is moved there."""
REFIT: Final = 16
"""After the first few, the line is fitted anew for every so many observations."""
LEAST_RATE: Final = 1 / 64
MOST_RATE: Final = 2.0
"""Tokens a byte; a byte that is no part of a longer token may still be JSON-escaped."""
MAX_KEYS: Final = 256

_Row = tuple[float, float, float, float, float]


class LengthEstimator:
    """Prompt tokens from prompt bytes; `observe` what engines report, then `estimate`.

    Bounded: the `max_keys` pairs of model and endpoint observed last are kept.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._lines: OrderedDict[tuple[str, str], _Line] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lines)

    def estimate(self, model: str, endpoint: str, nbytes: int) -> int:
        """Tokens of a prompt of `nbytes` bytes, at least 1; never fewer for more bytes."""
        line = self._lines.get((model, endpoint), UNKNOWN)
        return max(1, round(line.at(max(0, nbytes))))

    def observe(self, model: str, endpoint: str, nbytes: int, prompt_tokens: int) -> None:
        """Learn from an answer's usage. Sizes that aren't positive are ignored."""
        if nbytes <= 0 or prompt_tokens <= 0:
            return
        key = (model, endpoint)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        self._lines.move_to_end(key)
        if len(self._lines) > self._max_keys:
            self._lines.popitem(last=False)
        line.add(nbytes, prompt_tokens)


class _Line:
    """One fitted line."""

    def __init__(self) -> None:
        self._bins: dict[int, _Row] = {}
        self._seen = 0
        self._overhead = 0.0
        self._rate = 1 / PRIOR_BYTES_PER_TOKEN

    def at(self, nbytes: int) -> float:
        return self._overhead + self._rate * nbytes

    def add(self, nbytes: int, tokens: int) -> None:
        outlier = OUTLIER if self._seen >= EARLY else EARLY_OUTLIER
        expected = max(1.0, self.at(nbytes))
        believed = min(outlier * expected, max(expected / outlier, tokens))
        key = nbytes.bit_length()
        ones, x, xx, y, xy = _moments(nbytes, believed)
        held = self._bins.get(key)
        if held is not None:
            ones += MEMORY * held[0]
            x += MEMORY * held[1]
            xx += MEMORY * held[2]
            y += MEMORY * held[3]
            xy += MEMORY * held[4]
        self._bins[key] = (ones, x, xx, y, xy)
        self._seen += 1
        if self._seen <= EARLY or self._seen % REFIT == 0:
            self._overhead, self._rate = _fit((*PRIOR, *self._bins.values()))


def _moments(nbytes: int, tokens: float, weight: float = 1.0) -> _Row:
    """Sums of weight times 1, bytes, bytes squared, tokens, bytes * tokens."""
    scale = weight / (nbytes + SMALL_BYTES) ** 2
    x = scale * nbytes
    return scale, x, x * nbytes, scale * tokens, x * tokens


def _fit(rows: Iterable[_Row]) -> tuple[float, float]:
    """Overhead and rate of least squares, neither negative."""
    ones, x, xx, y, xy = (sum(column) for column in zip(*rows, strict=True))
    spread = ones * xx - x * x
    rate = (ones * xy - x * y) / spread
    overhead = (y - rate * x) / ones
    if overhead < 0 or rate < LEAST_RATE:
        overhead, rate = 0.0, xy / xx
    return overhead, min(MOST_RATE, max(LEAST_RATE, rate))


PRIOR: Final = tuple(
    _moments(nbytes, nbytes / PRIOR_BYTES_PER_TOKEN, PRIOR_WEIGHT) for nbytes in PRIOR_BYTES
)
UNKNOWN: Final = _Line()
"""The prior alone; never added to."""
