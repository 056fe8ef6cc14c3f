"""Plays workloads against engines side by side, and measures requests alone."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Final

from headway.bench.engines.engine import BenchEngine, EngineError
from headway.bench.judge.outcomes import Alone, errors, generator_lag_s
from headway.bench.load.exchange import Sample
from headway.bench.load.loadgen import Patience, play
from headway.bench.load.workload import SHORT, Workload, lone
from headway.bench.report.document import ProgressLines
from headway.core.slo import Limits, Outcome, itls_s, percentile, tpot_s

SETTLE_S: Final = 0.5
"""Between two workloads, for engines to free what was disconnected."""
LAG_WARNING_S: Final = 0.2
DECODE_TOKENS: Final = 64
"""Output of the lone request that TPOT alone is measured on."""
WARM_UP_PROMPTS: Final = (32, 700, 64)


class Stage:
    """Gives every workload fresh prompts, so that no prefix cache ever answers.

    seed: of all prompts; the n-th workload played has the same prompts in every
        run with this seed.
    """

    def __init__(self, seed: int, progress: ProgressLines) -> None:
        self._seed = seed
        self._progress = progress
        self._played = 0

    def play(
        self, engines: Sequence[BenchEngine], workload: Workload, patience: Patience | None = None
    ) -> dict[str, tuple[Sample, ...]]:
        """Play one workload against all engines at the same time; samples by engine name."""
        self._played += 1
        seed = f"{self._seed}-{self._played}"
        targets = [engine.target for engine in engines]
        samples = asyncio.run(play(targets, workload, seed, patience))
        lag_s = max(generator_lag_s(part) for part in samples)
        if lag_s > LAG_WARNING_S:
            self._progress.line(f"  sent up to {lag_s:.2f} s late: the machine is overcommitted")
        time.sleep(SETTLE_S)
        return {engine.name: part for engine, part in zip(engines, samples, strict=True)}

    def alone(self, engine: BenchEngine, lengths: Sequence[int], repeats: int) -> Alone:
        """Latency of single requests on an idle engine; medians of `repeats`.

        lengths: prompt tokens to measure, each above 0; any order.
        """
        points = []
        for tokens in sorted(set(lengths)):
            first = [self._one(engine, tokens, 2).token_times_s[0] for _ in range(repeats)]
            points.append((tokens, statistics.median(first)))
        shortest = points[0][0]
        decodes = [self._one(engine, shortest, DECODE_TOKENS) for _ in range(repeats)]
        tpots: list[float] = []
        gaps: list[float] = []
        for sample in decodes:
            times = sample.token_times_s
            outcome = Outcome(SHORT, 0.0, times, True, Limits(1.0, 1.0))
            tpots.append(tpot_s(outcome) or 0.0)
            gaps += itls_s(outcome)
        p99_s = percentile(gaps, 99) or 0.0
        return Alone(tuple(points), statistics.median(tpots), p99_s, max(gaps, default=0.0))

    def warm_up(self, engine: BenchEngine) -> None:
        """A few requests whose times nobody looks at."""
        for tokens in WARM_UP_PROMPTS:
            self._one(engine, tokens, 8)

    def _one(self, engine: BenchEngine, prompt_tokens: int, output_tokens: int) -> Sample:
        (sample,) = self.play([engine], lone(prompt_tokens, output_tokens, SHORT))[engine.name]
        if sample.error is not None:
            found = ", ".join(errors([sample]))
            raise EngineError(f"{engine.name} failed a single request of {prompt_tokens}: {found}")
        return sample
