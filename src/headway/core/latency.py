"""How long an engine step takes, learned from measured steps.

The model is linear in what a step does:

    seconds = c0 + c1 * P + c2 * W + c3 * X + c4 * D + c5 * C

P prefill tokens, W prefill attention work (token pairs), X prefill context (KV
read, once a chunk however small), D decodes, C decode context tokens.
Coefficients are never negative. The terms are those of Vidur
(https://github.com/microsoft/vidur) and DistServe
(https://github.com/LLMServe/DistServe) reduced to what a scheduler knows
before a step runs.

Samples are kept as normal equations in bins by size of step, and each bin
forgets on its own: a long stretch of pure decoding doesn't wash out what is
known about prefill. Every sample counts relative to its duration, and
outliers are weighted down. A quickly moving factor (`drift`) follows a machine
that becomes slower or faster as a whole, by whatever factor, until the samples
that are kept say the same. They are kept as measured: the factor also takes up
what is wrong with the formula for the steps of the moment.
"""

import math
from typing import Final, NamedTuple

TERMS: Final = 6
MOMENTS: Final = TERMS * (TERMS + 1) // 2
"""Distinct products of two terms; a bin holds these and the products with the duration."""
BIN_MEMORY: Final = 0.98
"""What a bin keeps when a sample joins it; about 50 samples count."""
DRIFT_GAIN: Final = 0.1
ERROR_GAIN: Final = 0.05
OUTLIER: Final = 3.0
"""A residual beyond this many typical residuals is weighted down."""
READY_SAMPLES: Final = 4
SETTLED_SAMPLES: Final = 32
REFIT_STEPS: Final = 8


class StepShape(NamedTuple):
    """What a step computes, in the units of the module's formula."""

    prefill_tokens: int = 0
    prefill_work: float = 0.0
    prefill_context_tokens: int = 0
    decodes: int = 0
    decode_context_tokens: int = 0


def attention_work(tokens: int, context_tokens: int) -> float:
    """Token pairs that a chunk of `tokens` after `context_tokens` attends to."""
    return tokens * (context_tokens + tokens / 2)


class StepTimeModel:
    """Learned step time; `observe` steps, then `predict` them or ask for `largest_chunk`."""

    def __init__(self) -> None:
        self._bins: dict[tuple[int, int], list[float]] = {}
        self._total = [0.0] * (MOMENTS + TERMS)
        self._coefficients = [0.0] * TERMS
        self._largest_tokens = 0
        self._prefill_samples = 0
        self.samples = 0
        self.drift = 1.0
        self.error = 0.1
        """Typical relative error of a prediction."""

    @property
    def ready(self) -> bool:
        """Enough steps with prefill were seen to size a chunk."""
        return self._prefill_samples >= READY_SAMPLES

    @property
    def settled(self) -> bool:
        """Enough steps were seen to rely on predictions of any shape."""
        return self.samples >= SETTLED_SAMPLES

    @property
    def coefficients(self) -> tuple[float, ...]:
        """c0..c5, seconds per unit."""
        return tuple(self._coefficients)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from one measured step. Durations that aren't positive are ignored."""
        if not (seconds > 0 and math.isfinite(seconds)):
            return
        weight = self._weigh(shape, seconds)
        self._add(shape, seconds, weight)
        self.samples += 1
        if shape.prefill_tokens > 0:
            self._prefill_samples += 1
            self._largest_tokens = max(self._largest_tokens, shape.prefill_tokens)
        if self.samples <= SETTLED_SAMPLES or self.samples % REFIT_STEPS == 0:
            self._refit()

    def predict(self, shape: StepShape) -> float:
        """Seconds a step of this shape takes; 0.0 while nothing is known."""
        return self.drift * self._raw(shape)

    def chunk_s(self, tokens: int, context_tokens: int) -> float:
        """Seconds that a chunk adds to a step."""
        _, per_token, per_pair, per_context, _, _ = self._coefficients
        pairs = attention_work(tokens, context_tokens)
        seconds = per_token * tokens + per_pair * pairs + per_context * context_tokens
        return self.drift * seconds if tokens else 0.0

    def read_s(self, context_tokens: int) -> float:
        """Seconds that a chunk costs for reading its context, however small it is."""
        return self.drift * self._coefficients[3] * context_tokens

    def largest_chunk(self, seconds: float, context_tokens: int, at_most: int) -> int:
        """The most tokens, up to `at_most`, that add no more than `seconds` to a step.

        Closed form: the positive root of
        (c2 / 2) p^2 + (c1 + c2 * context) p = seconds - c3 * context.
        While little is known the answer is at most twice the largest chunk seen,
        so that an early wrong guess can't make a huge step.
        """
        if math.isinf(seconds):
            return at_most
        if not self.settled:
            at_most = min(at_most, 2 * self._largest_tokens)
        _, per_token, per_pair, per_context, _, _ = self._coefficients
        room = seconds / self.drift - per_context * context_tokens
        if room <= 0:
            return 0
        linear = per_token + per_pair * context_tokens
        if linear <= 0 and per_pair <= 0:
            return at_most
        root = math.sqrt(linear * linear + 2 * per_pair * room)
        return min(at_most, int(2 * room / (linear + root)))

    def alone_s(self, tokens: int, context_tokens: int, step_tokens: int) -> float:
        """Seconds to prefill `tokens` with nothing else running, `step_tokens` a step."""
        steps = -(-tokens // step_tokens)
        fixed, per_token, per_pair, per_context, _, _ = self._coefficients
        read = steps * context_tokens + step_tokens * steps * (steps - 1) / 2
        pairs = attention_work(tokens, context_tokens)
        return self.drift * (
            steps * fixed + per_token * tokens + per_pair * pairs + per_context * read
        )

    def _raw(self, shape: StepShape) -> float:
        c = self._coefficients
        return (
            c[0]
            + c[1] * shape.prefill_tokens
            + c[2] * shape.prefill_work
            + c[3] * shape.prefill_context_tokens
            + c[4] * shape.decodes
            + c[5] * shape.decode_context_tokens
        )

    def _weigh(self, shape: StepShape, seconds: float) -> float:
        """Update drift and error; the sample's weight, 1 unless it is an outlier."""
        raw = self._raw(shape)
        if self.samples < READY_SAMPLES or raw <= 0:
            return 1.0
        off = math.log(seconds / (self.drift * raw))
        typical = max(self.error, 0.02)
        weight = min(1.0, OUTLIER * typical / abs(off)) if off else 1.0
        capped = min(abs(off), 2 * OUTLIER * typical)
        self.error += ERROR_GAIN * (capped - self.error)
        self.drift *= math.exp(DRIFT_GAIN * weight * off)
        return weight

    def _add(self, shape: StepShape, seconds: float, weight: float) -> None:
        key = (shape.prefill_tokens.bit_length(), shape.decodes.bit_length())
        held = self._bins.setdefault(key, [0.0] * (MOMENTS + TERMS))
        x = (1.0, *shape)
        expected_s = max(seconds, self.predict(shape))  # one far too short would count most of all
        scale = weight / (expected_s * expected_s)
        row = [scale * x[i] * x[j] for i in range(TERMS) for j in range(i, TERMS)]
        row += [scale * x[i] * seconds for i in range(TERMS)]
        total = self._total
        for k, new in enumerate(row):
            old = held[k]
            held[k] = BIN_MEMORY * old + new
            total[k] += held[k] - old

    def _refit(self) -> None:
        if self.samples % 1024 == 0:
            self._total = [sum(column) for column in zip(*self._bins.values(), strict=True)]
        matrix = [[0.0] * TERMS for _ in range(TERMS)]
        k = 0
        for i in range(TERMS):
            for j in range(i, TERMS):
                matrix[i][j] = matrix[j][i] = self._total[k]
                k += 1
        self._coefficients = solve_nonnegative(matrix, self._total[MOMENTS:])


def solve_nonnegative(matrix: list[list[float]], rhs: list[float]) -> list[float]:
    """Least squares by normal equations with no negative coefficient.

    matrix: symmetric, positive semidefinite; rhs of the same length. Terms
    without any data get 0. Negative ones are dropped, the worst first, and the
    rest solved again.
    """
    active = [i for i in range(len(rhs)) if matrix[i][i] > 0]
    while active:
        scales = [math.sqrt(matrix[i][i]) for i in active]
        scaled = [
            [
                matrix[i][j] / (si * sj) + (1e-6 if i == j else 0.0)
                for j, sj in zip(active, scales, strict=True)
            ]
            for i, si in zip(active, scales, strict=True)
        ]
        right = [rhs[i] / s for i, s in zip(active, scales, strict=True)]
        solution = _eliminate(scaled, right)
        worst = min(range(len(active)), key=solution.__getitem__)
        if solution[worst] >= 0:
            result = [0.0] * len(rhs)
            for i, s, value in zip(active, scales, solution, strict=True):
                result[i] = value / s
            return result
        del active[worst]
    return [0.0] * len(rhs)


def _eliminate(matrix: list[list[float]], rhs: list[float]) -> list[float]:
    """Gaussian elimination of a small positive definite system; destroys its arguments."""
    n = len(rhs)
    for i in range(n):
        pivot = matrix[i][i]
        for r in range(i + 1, n):
            factor = matrix[r][i] / pivot
            if factor:
                for c in range(i, n):
                    matrix[r][c] -= factor * matrix[i][c]
                rhs[r] -= factor * rhs[i]
    for i in range(n - 1, -1, -1):
        rhs[i] = (rhs[i] - sum(matrix[i][c] * rhs[c] for c in range(i + 1, n))) / matrix[i][i]
    return rhs
