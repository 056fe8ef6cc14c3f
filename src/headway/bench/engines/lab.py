"""What the engine benchmarks set up alike: engines of arms, limits, the tuned arm."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from headway.bench.engines.arms import TUNED, arm_spec
from headway.bench.engines.engine import BenchEngine, EngineError
from headway.bench.engines.options import BenchOptions
from headway.bench.engines.stage import Stage
from headway.bench.judge.outcomes import Alone
from headway.bench.report.document import ProgressLines
from headway.core.batching.settings import STOCK
from headway.core.slo import Slo

CORES: Final = (0, 1)
TTFT_FLOOR_S: Final = 1.0
SLO_FACTOR: Final = 4.0
"""TTFT and TPOT limits as multiples of the same request alone."""
TUNE_THRESHOLDS: Final = (64, 128, 256)
TUNED_THRESHOLD: Final = 128
"""A quarter of a step of 512; `--tune` searches `TUNE_THRESHOLDS` and records what it found."""


class Lab:
    """Two cores to run engines on, and how.

    flags: given to every engine.
    slo: the limits; known once `measure_alone` has run.
    threshold: of the tuned arm, tokens.
    tuning: attainment by threshold, if it was searched.
    failures: why an arm could not be measured.
    """

    def __init__(
        self, options: BenchOptions, flags: tuple[str, ...], progress: ProgressLines
    ) -> None:
        self.options = options
        self.flags = flags
        self.progress = progress
        self.stage = Stage(options.seed, progress)
        self.slo = Slo(TTFT_FLOOR_S, SLO_FACTOR, 1.0)
        self.threshold = options.tuned_threshold or TUNED_THRESHOLD
        self.tuning: dict[int, float] = {}
        self.failures: dict[str, str] = {}

    def engine(self, arm: str, beside: BenchEngine | None = None) -> BenchEngine:
        """The engine of an arm, not yet started, on the core that `beside` doesn't use."""
        spec = arm_spec(
            arm,
            flags=self.flags,
            model=self.options.model,
            tpot_limit_s=self.slo.tpot_s,
            tuned_threshold_tokens=self.threshold,
        )
        taken = CORES[1] if beside is None else beside.core
        return BenchEngine.of(spec, CORES[1] if taken == CORES[0] else CORES[0], self.progress)

    def measure_alone(self, stock: BenchEngine, lengths: Sequence[int], repeats: int) -> Alone:
        """Latency of requests alone on `stock`, from which the limits follow."""
        self.stage.warm_up(stock)
        self.progress.line("measuring requests alone")
        alone = self.stage.alone(stock, lengths, repeats)
        self.slo = Slo(TTFT_FLOOR_S, SLO_FACTOR, SLO_FACTOR * alone.tpot_s)
        self.progress.line(
            f"alone: TPOT {alone.tpot_s:.3f} s, so the limit is {self.slo.tpot_s:.3f} s"
        )
        return alone

    def tune(self, stock: BenchEngine, attainment_of: Callable[[BenchEngine], float]) -> None:
        """Search the tuned arm's threshold, if asked to: the one with the best attainment.

        attainment_of: measures a tuned engine that runs beside `stock`.
        """
        if self.options.tuned_threshold is not None:
            return
        for threshold in TUNE_THRESHOLDS:
            self.threshold = threshold
            with self.engine(TUNED, beside=stock) as engine:
                self.stage.warm_up(engine)
                self.tuning[threshold] = attainment_of(engine)
        self.threshold = max(TUNE_THRESHOLDS, key=lambda tokens: self.tuning[tokens])
        self.progress.line(f"{TUNED}: threshold {self.threshold} of {self.tuning}")

    @contextmanager
    def attempt(self, arm: str) -> Iterator[None]:
        """Measure an arm; if its engine fails, note that and go on with the others."""
        try:
            yield
        except EngineError as error:
            self.failures[arm] = str(error)
            self.progress.line(f"{arm} could not be measured: {error}")

    def others(self, *resident: str) -> list[str]:
        """The arms to run, in order, but for stock and those named."""
        return [arm for arm in self.options.arms if arm not in {STOCK, *resident}]
