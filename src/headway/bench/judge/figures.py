"""The figures of a round beside a long prompt, from what the client saw."""

from collections.abc import Sequence
from dataclasses import dataclass

from headway.bench.judge import outcomes
from headway.bench.judge.outcomes import Alone
from headway.bench.judge.spread import ratio
from headway.bench.load.exchange import Sample
from headway.bench.load.workload import LONG, RUNNING, SHORT
from headway.core.slo import Outcome, Slo, percentile, summarise, ttft_s

Figures = dict[str, float | None]
"""By name, the unit at its end; None where a round has no data for it."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Turns samples into figures.

    slo, alone: the limits, and what they are multiples of.
    short_tokens: the usual length of a short prompt, for ratios to it alone.
    """

    slo: Slo
    alone: Alone
    short_tokens: int

    def saturated(self, samples: Sequence[Sample]) -> Figures:
        """Of a backlog worked off."""
        return {"tokens_per_s": outcomes.tokens_per_s(samples)}

    def lone(self, samples: Sequence[Sample]) -> Figures:
        """Of one long prompt and nothing else."""
        judged = outcomes.judge(samples, self.slo, self.alone)
        return {"lone_ttft_s": max(outcomes.ttfts_s(judged), default=None)}

    def contention(self, samples: Sequence[Sample], duration_s: float) -> Figures:
        """Of running decodes, short arrivals and long prompts during `duration_s` seconds."""
        judged = outcomes.judge(samples, self.slo, self.alone)
        running = summarise(outcomes.of_class(judged, RUNNING), duration_s)
        whole = summarise(judged, duration_s)
        longs = outcomes.ttfts_s(outcomes.of_class(judged, LONG))
        return {
            **self._shorts(outcomes.of_class(judged, SHORT)),
            "long_ttft_s": max(longs, default=None),
            "itl_p99_s": running.itl_p99_s,
            "stall_s": running.longest_stall_s,
            "tpot_p99_s": running.tpot_p99_s,
            "tpot_p99_x_limit": ratio(running.tpot_p99_s, self.slo.tpot_s),
            "stall_x_limit": ratio(running.longest_stall_s, self.slo.tpot_s),
            "goodput_per_s": whole.goodput_per_s,
            "attainment": whole.attainment,
            "generator_lag_s": outcomes.generator_lag_s(samples),
        }

    def _shorts(self, shorts: Sequence[Outcome]) -> Figures:
        ttfts = outcomes.ttfts_s(shorts)
        shares = [t / o.limits.ttft_s for o in shorts if (t := ttft_s(o)) is not None]
        p50_s = percentile(ttfts, 50)
        return {
            "short_ttft_p50_s": p50_s,
            "short_ttft_p99_s": percentile(ttfts, 99),
            "short_ttft_p50_x_alone": ratio(p50_s, self.alone.ttft_s(self.short_tokens)),
            "short_ttft_p99_x_limit": percentile(shares, 99),
        }
