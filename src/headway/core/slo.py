"""The measure of success: which requests met their limits, and how many a second.

This is the only place that judges: the router its requests (`judge`), benchmarks what their own
clients saw (`verdict`). Times are seconds on one clock. A request is judged from the moment its
client *meant* to send it, or, by a router, from when its head had come; so time spent queueing
anywhere counts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

REFUSALS: Final = (429, 503)
"""Statuses of answers that say: not now."""
KEY_REFUSALS: Final = (401, 403)
TTFT_ARGUMENT: Final = "headway_ttft_slo_s"
TPOT_ARGUMENT: Final = "headway_tpot_slo_s"
"""What a client's own limits are called in a request's `vllm_xargs`; seconds."""


class Limits(NamedTuple):
    """What one request was promised.

    ttft_s: latest first token after the intended send time.
    tpot_s: longest mean time per output token after the first.
    """

    ttft_s: float
    tpot_s: float

    def whole_s(self, tokens: float) -> float:
        """When an answer of so many tokens is complete at the latest."""
        return self.ttft_s + max(tokens - 1, 0) * self.tpot_s


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits for requests of any length; the TTFT limit grows with the prompt.

    ttft_floor_s: the TTFT limit of a prompt that prefills at once.
    ttft_factor: the TTFT limit as a multiple of the TTFT alone.
    tpot_s: the TPOT limit of every request.
    """

    ttft_floor_s: float
    ttft_factor: float
    tpot_s: float

    def limits(
        self,
        alone_ttft_s: float,
        *,
        own_ttft_s: float | None = None,
        own_tpot_s: float | None = None,
    ) -> Limits:
        """Limits of a request whose TTFT on an idle engine is `alone_ttft_s`.

        own_ttft_s, own_tpot_s: those that its client set, positive and finite; they come first.
        """
        ttft_s = self.ttft_limit_s(alone_ttft_s) if own_ttft_s is None else own_ttft_s
        return Limits(ttft_s, self.tpot_s if own_tpot_s is None else own_tpot_s)

    def ttft_limit_s(self, alone_ttft_s: float) -> float:
        """The TTFT limit of a request whose client set none."""
        return max(self.ttft_floor_s, self.ttft_factor * alone_ttft_s)


def asked_s(value: object) -> float | None:
    """A limit that a client asks for, seconds; None for anything but a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def granted_s(asked: float, usual_s: float, *, least: float, most: float) -> float:
    """What a client gets that asks for a limit, where others have `usual_s`.

    least, most: the tightest and the widest that it may ask for, as multiples of `usual_s`.
    """
    return max(least * usual_s, min(most * usual_s, asked))


class Verdict(StrEnum):
    """What became of a request. Each has exactly one."""

    MET = "met"
    TTFT = "ttft"
    """Its first token was late."""
    TPOT = "tpot"
    """Its tokens after the first were slow."""
    TOTAL = "total"
    """It wasn't streamed, and took longer than its tokens may."""
    LEFT_WAITING = "left waiting"
    """Its client left without a token when one was due."""
    ERROR = "error"
    REFUSED = "refused"
    """Told to come back later: 429, 503."""
    TRUNCATED = "truncated"
    """Its answer broke off."""
    CLIENT_LEFT = "client left"
    """Its client left while all limits could still be met: that says nothing."""
    CLIENT_ERROR = "client error"
    """It asked for what nobody could have done, or without a key."""
    UNKNOWN = "unknown"
    """How many tokens it had isn't known well enough to tell."""
    NO_LIMITS = "no limits"
    """It asked for something else than an answer to a prompt."""

    @property
    def met(self) -> bool | None:
        """Whether it counts as met or as missed; None if as neither."""
        if self is Verdict.MET:
            return True
        return None if self in _UNCOUNTED else False


_UNCOUNTED: Final = frozenset(
    {Verdict.CLIENT_LEFT, Verdict.CLIENT_ERROR, Verdict.UNKNOWN, Verdict.NO_LIMITS}
)


class Ending(NamedTuple):
    """How a request ended. Times count from when it came.

    status: of its answer.
    ended_s: when all was over: the answer complete, or the client noticed to have left.
    generates: whether it asks for an answer to a prompt.
    limits: what it was promised; None if it ended before it was known what it asks for.
    left: its client left before the answer was complete; by_itself: and not because it took
        nothing of what there was.
    truncated: its answer broke off.
    by_engine: the status is an engine's, passed on.
    streamed: tokens were to come one by one.
    first_s, last_s: its first and latest token; None without one, or where it wasn't streamed.
    least_tokens, most_tokens: what is known of its tokens: of those of a stream that came, of the
        longest answer where it was several, of all that were to come where its client left.
    """

    status: int
    ended_s: float
    generates: bool = True
    limits: Limits | None = None
    left: bool = False
    by_itself: bool = True
    truncated: bool = False
    by_engine: bool = False
    streamed: bool = False
    first_s: float | None = None
    last_s: float | None = None
    least_tokens: int = 1
    most_tokens: float = math.inf

    @property
    def tpot_s(self) -> float | None:
        """As seen in a stream; where there were several answers, of the shortest that may have
        been the longest.
        """
        if self.first_s is None or self.last_s is None or self.least_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.least_tokens - 1)


def judge(ending: Ending) -> Verdict:
    """The verdict on one request."""
    if ending.left:
        return _of_departure(ending)
    if not ending.generates:
        return Verdict.NO_LIMITS
    if ending.truncated:
        return Verdict.TRUNCATED
    if not 200 <= ending.status < 300:
        return _of_error(ending)
    if ending.limits is None:
        return Verdict.NO_LIMITS
    return (_of_stream if ending.streamed else _of_whole)(ending, ending.limits)


def _of_error(ending: Ending) -> Verdict:
    status = ending.status
    if status in REFUSALS:
        return Verdict.REFUSED
    if status in KEY_REFUSALS and ending.by_engine:
        return Verdict.ERROR  # it is the router's key that the engine doesn't take
    return Verdict.CLIENT_ERROR if 400 <= status < 500 else Verdict.ERROR


def _of_departure(ending: Ending) -> Verdict:
    """Missed if a token was due by then. What was good until then isn't met: it didn't end."""
    limits, first_s = ending.limits, ending.first_s
    if limits is None or not ending.by_itself:
        return Verdict.CLIENT_LEFT
    if first_s is None:
        due_s = limits.ttft_s if ending.streamed else limits.whole_s(ending.most_tokens)
        return Verdict.LEFT_WAITING if ending.ended_s > due_s else Verdict.CLIENT_LEFT
    if first_s > limits.ttft_s:
        return Verdict.TTFT
    overdue = ending.ended_s - first_s > ending.least_tokens * limits.tpot_s
    return Verdict.TPOT if overdue else Verdict.CLIENT_LEFT


def _of_stream(ending: Ending, limits: Limits) -> Verdict:
    first_s = ending.ended_s if ending.first_s is None else ending.first_s
    if first_s > limits.ttft_s:
        return Verdict.TTFT
    after_s = 0.0 if ending.last_s is None else ending.last_s - first_s
    if ending.most_tokens < 2 or _keeps_pace(after_s, ending.least_tokens, limits):
        return Verdict.MET
    unsure = _keeps_pace(after_s, ending.most_tokens, limits)
    return Verdict.UNKNOWN if unsure else Verdict.TPOT


def _keeps_pace(after_s: float, tokens: float, limits: Limits) -> bool:
    return after_s <= 0 or (tokens > 1 and after_s / (tokens - 1) <= limits.tpot_s)


def _of_whole(ending: Ending, limits: Limits) -> Verdict:
    """Nobody saw its first token: it must be there by when the last one is due."""
    ended_s = ending.ended_s
    if ended_s <= limits.whole_s(ending.least_tokens):
        return Verdict.MET
    return Verdict.TOTAL if ended_s > limits.whole_s(ending.most_tokens) else Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request.

    length_class: the class it is counted in, for example `short`.
    intended_s: when the client meant to send it.
    token_times_s: arrival of each output token, ascending; tokens that came
        together have equal times.
    completed: whether every token asked for arrived; failed, refused and
        abandoned requests are False and count as missed.
    limits: what it was promised.
    """

    length_class: str
    intended_s: float
    token_times_s: tuple[float, ...]
    completed: bool
    limits: Limits


def ttft_s(outcome: Outcome) -> float | None:
    """First token minus intended send time; None without a token."""
    if not outcome.token_times_s:
        return None
    return outcome.token_times_s[0] - outcome.intended_s


def tpot_s(outcome: Outcome) -> float | None:
    """(last token - first token) / (tokens - 1); None below two tokens."""
    times = outcome.token_times_s
    if len(times) < 2:
        return None
    return (times[-1] - times[0]) / (len(times) - 1)


def itls_s(outcome: Outcome) -> tuple[float, ...]:
    """The gap before each output token but the first."""
    times = outcome.token_times_s
    return tuple(b - a for a, b in pairwise(times))


def verdict(outcome: Outcome) -> Verdict:
    """The verdict on a request whose client saw it end."""
    first_s = ttft_s(outcome)
    if not outcome.completed or first_s is None:
        return Verdict.ERROR
    last_s = outcome.token_times_s[-1] - outcome.intended_s
    tokens = len(outcome.token_times_s)
    ending = Ending(
        200,
        last_s,
        limits=outcome.limits,
        streamed=True,
        first_s=first_s,
        last_s=last_s,
        least_tokens=tokens,
        most_tokens=tokens,
    )
    return judge(ending)


def met(outcome: Outcome) -> bool:
    """Whether the request completed within all of its limits."""
    return verdict(outcome) is Verdict.MET


def attainment(outcomes: Sequence[Outcome]) -> float | None:
    """Share of the requests sent that met their limits; None if none was sent."""
    if not outcomes:
        return None
    return sum(map(met, outcomes)) / len(outcomes)


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The `percent`-th percentile (0 to 100), linear between ranks; None if empty."""
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is {percent}; use 0 to 100")
    ranked = sorted(values)
    if not ranked:
        return None
    place = (len(ranked) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ranked) - 1)
    step = ranked[above] - ranked[below]
    return min(ranked[below] + step * (place - below), ranked[above])


@dataclass(frozen=True, slots=True)
class Summary:
    """Metrics of a set of requests; None where no request defines the metric.

    Latency percentiles are over the requests that have the metric, so read
    them with `sent`, `completed` and `attainment` beside them.
    """

    sent: int
    completed: int
    met: int
    attainment: float | None
    goodput_per_s: float
    output_tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    itl_p99_s: float | None
    longest_stall_s: float | None


def summarise(outcomes: Sequence[Outcome], duration_s: float) -> Summary:
    """Metrics of `outcomes`, whose requests were offered during `duration_s` seconds."""
    if not duration_s > 0:
        raise ValueError(f"duration_s is {duration_s}; use a number above 0")
    ttfts = _defined(ttft_s, outcomes)
    tpots = _defined(tpot_s, outcomes)
    itls = [gap for outcome in outcomes for gap in itls_s(outcome)]
    hits = sum(map(met, outcomes))
    return Summary(
        sent=len(outcomes),
        completed=sum(outcome.completed for outcome in outcomes),
        met=hits,
        attainment=attainment(outcomes),
        goodput_per_s=hits / duration_s,
        output_tokens_per_s=sum(len(o.token_times_s) for o in outcomes) / duration_s,
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        tpot_p50_s=percentile(tpots, 50),
        tpot_p99_s=percentile(tpots, 99),
        itl_p99_s=percentile(itls, 99),
        longest_stall_s=max(itls, default=None),
    )


def summarise_by_class(outcomes: Sequence[Outcome], duration_s: float) -> dict[str, Summary]:
    """`summarise` for each length class, by name in order."""
    names = sorted({outcome.length_class for outcome in outcomes})
    return {
        name: summarise([o for o in outcomes if o.length_class == name], duration_s)
        for name in names
    }


def _defined(metric: Callable[[Outcome], float | None], outcomes: Iterable[Outcome]) -> list[float]:
    return [value for o in outcomes if (value := metric(o)) is not None]
