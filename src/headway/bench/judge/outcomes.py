"""From what the client saw to the metrics: judges samples against limits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from headway.bench.load.exchange import CUT_OFF, Sample
from headway.bench.load.workload import RUNNING
from headway.core.slo import Outcome, Slo, summarise, summarise_by_class, ttft_s

LEAST_TOKENS: Final = 16
"""A running decode cut off with fewer tokens tells nothing about its TPOT."""


@dataclass(frozen=True, slots=True)
class Alone:
    """Latency of requests on an otherwise idle engine.

    ttft_points: (prompt tokens, TTFT in seconds), by length, at least one.
    tpot_s: time per output token of a lone decode.
    itl_p99_s, longest_stall_s: gaps between its tokens.
    """

    ttft_points: tuple[tuple[int, float], ...]
    tpot_s: float
    itl_p99_s: float
    longest_stall_s: float

    def ttft_s(self, prompt_tokens: int) -> float:
        """TTFT of a prompt of this length, linear between measured lengths.

        Below the shortest measured length it is that of the shortest; above
        the longest the last slope continues.
        """
        points = self.ttft_points
        if prompt_tokens <= points[0][0] or len(points) == 1:
            return points[0][1]
        pairs = list(pairwise(points))
        (n0, t0), (n1, t1) = next(
            (pair for pair in pairs if prompt_tokens <= pair[1][0]), pairs[-1]
        )
        return t0 + (t1 - t0) * (prompt_tokens - n0) / (n1 - n0)


def judge(samples: Iterable[Sample], slo: Slo, alone: Alone) -> list[Outcome]:
    """Outcomes with the limits of their length.

    A running decode that the measurement itself cut off is judged on the tokens
    it had, and left out if those are fewer than `LEAST_TOKENS`. Any other
    request with an error counts as not completed.
    """
    outcomes = []
    for sample in samples:
        limits = slo.limits(alone.ttft_s(sample.prompt_tokens))
        cut = sample.length_class == RUNNING and sample.error == CUT_OFF
        if cut and len(sample.token_times_s) < LEAST_TOKENS:
            continue
        outcomes.append(
            Outcome(
                sample.length_class,
                sample.intended_s,
                sample.token_times_s,
                completed=cut or sample.error is None,
                limits=limits,
            )
        )
    return outcomes


def of_class(outcomes: Iterable[Outcome], name: str) -> list[Outcome]:
    """The outcomes of one length class."""
    return [outcome for outcome in outcomes if outcome.length_class == name]


def ttfts_s(outcomes: Iterable[Outcome]) -> list[float]:
    """TTFT of every request that got a first token."""
    return [value for o in outcomes if (value := ttft_s(o)) is not None]


def summaries(outcomes: Sequence[Outcome], duration_s: float) -> dict[str, Any]:
    """Plain summaries for a report: `all`, and each length class by name."""
    parts = summarise_by_class(outcomes, duration_s)
    return {
        "all": asdict(summarise(outcomes, duration_s)),
        **{name: asdict(part) for name, part in parts.items()},
    }


def tokens_per_s(samples: Sequence[Sample]) -> float | None:
    """Prompt and output tokens served a second, from the first send to the last token.

    Only requests that completed count; None if none did.
    """
    done = [sample for sample in samples if sample.error is None]
    if not done:
        return None
    makespan_s = max(s.token_times_s[-1] for s in done) - min(s.intended_s for s in samples)
    return sum(s.prompt_tokens + s.output_tokens for s in done) / makespan_s


def generator_lag_s(samples: Iterable[Sample]) -> float:
    """The worst delay between meaning to send and sending: the generator's own error."""
    return max((s.sent_s - s.intended_s for s in samples), default=0.0)


def errors(samples: Iterable[Sample]) -> Mapping[str, int]:
    """How often each error occurred, what the measurement cut off included."""
    counts: dict[str, int] = {}
    for sample in samples:
        if sample.error is not None:
            counts[sample.error] = counts.get(sample.error, 0) + 1
    return counts


def raw(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """One plain record a request, times in seconds to the tenth of a millisecond."""
    return [_record(sample) for sample in samples]


def _record(sample: Sample) -> dict[str, Any]:
    times = sample.token_times_s
    gaps = [b - a for a, b in pairwise(times)]
    return {
        "class": sample.length_class,
        "prompt_tokens": sample.prompt_tokens,
        "output_tokens": sample.output_tokens,
        "received_tokens": len(times),
        "intended_s": round(sample.intended_s, 4),
        "sent_s": round(sample.sent_s, 4),
        "first_token_s": round(times[0], 4) if times else None,
        "last_token_s": round(times[-1], 4) if times else None,
        "longest_stall_s": round(max(gaps), 4) if gaps else None,
        "error": sample.error,
    }
