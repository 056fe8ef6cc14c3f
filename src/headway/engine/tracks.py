"""What headway remembers of each request in the engine."""

import math
import time
from dataclasses import dataclass
from typing import Any, Final

from vllm.v1.request import Request, RequestStatus

from headway.core.batching.policy import Policy

OLDEST_S: Final = 3600.0
"""An arrival stamp further back is not believed."""
TTFT_ARGUMENT: Final = "headway_ttft_slo_s"
TPOT_ARGUMENT: Final = "headway_tpot_slo_s"


@dataclass(slots=True)
class Track:
    """arrival_s is monotonic; pace_s is seconds a token.

    total_tokens: uncached tokens of the whole prompt, as judged on arrival and again at its start.
    origin_s: its first token's time less the pace of all tokens before that, so that its next one
        is due at origin_s + (computed tokens) * pace_s; inf until the first token came.
    """

    arrival_s: float
    total_tokens: int
    ttft_slo_s: float | None
    pace_s: float
    origin_s: float = math.inf
    stamp: float = 0.0
    """The request's own arrival time; a session's changes with each piece of input."""


class Tracks:
    """The tracks of all requests in the engine, by request id."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tracks: dict[str, Track] = {}

    def __len__(self) -> int:
        return len(self._tracks)

    def get(self, request_id: str) -> Track | None:
        """The track, or None for a request that has left."""
        return self._tracks.get(request_id)

    def of(self, request: Request, tokens: int, now_s: float) -> Track:
        """The request's track; a new one if it, or new input of it, is first seen.

        tokens: what it has to compute then.
        """
        track = self._tracks.get(request.request_id)
        if track is None or track.stamp != request.arrival_time:
            age_s = time.time() - request.arrival_time
            if not 0 <= age_s <= OLDEST_S:
                age_s = 0.0
            parameters = getattr(request.sampling_params, "extra_args", None) or {}
            track = Track(
                now_s - age_s,
                tokens,
                _limit(parameters, TTFT_ARGUMENT),
                self._policy.pace_s(_limit(parameters, TPOT_ARGUMENT)),
                stamp=request.arrival_time,
            )
            self._tracks[request.request_id] = track
        return track

    def resume(self, request: Request, now_s: float) -> None:
        """Remember a request that has been served so far; a decode's next token is due from now."""
        track = self.of(request, request.num_tokens, now_s)
        if request.status == RequestStatus.RUNNING and not request.is_prefill_chunk:
            track.origin_s = now_s - (request.num_computed_tokens - 1) * track.pace_s

    def forget(self, request_id: str) -> None:
        """The request has left the engine."""
        self._tracks.pop(request_id, None)

    def got_first_token(self, request: Request, now_s: float) -> None:
        """The request may have its first token; only the first call counts."""
        track = self._tracks.get(request.request_id)
        if track is not None and track.origin_s == math.inf and request.num_output_tokens:
            track.origin_s = now_s - (request.num_prompt_tokens - 1) * track.pace_s

    def deadlines_s(self, decodes: list[Request]) -> list[float]:
        """When each running decode's next token is due; inf for those without a first token."""
        get = self._tracks.get
        return [
            track.origin_s + request.num_computed_tokens * track.pace_s
            for request in decodes
            if (track := get(request.request_id)) is not None
        ]


def _limit(parameters: dict[str, Any], name: str) -> float | None:
    """A client's own limit in seconds; anything but a positive finite number is ignored."""
    value = parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
