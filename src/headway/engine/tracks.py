"""What headway remembers of each request in the engine."""

import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from vllm.v1.request import Request, RequestStatus

from headway.core.batching.budget import PACE
from headway.core.batching.policy import Policy
from headway.core.slo import TPOT_ARGUMENT, TTFT_ARGUMENT

OLDEST_S: Final = 3600.0
"""An arrival stamp further back is not believed."""


@dataclass(slots=True)
class Track:
    """arrival_s is monotonic; pace_s is seconds a token; priority is what the client's counts as.

    total_tokens: uncached tokens of the whole prompt, as judged on arrival and again at its start.
    origin_s: such that its next token is due at origin_s + (computed tokens) * pace_s: its first
        token's time less the pace of all tokens before that, later if it was paced anew; inf
        until the first token came.
    """

    arrival_s: float
    total_tokens: int
    ttft_slo_s: float | None
    pace_s: float
    priority: int
    origin_s: float = math.inf
    stamp: float = 0.0
    """The request's own arrival time; a session's changes with each piece of input."""


class Tracks:
    """The tracks of all requests in the engine, by request id."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tracks: dict[str, Track] = {}
        self.clamped: Counter[str] = Counter()
        """By kind, how often a client asked for a limit or priority outside its range."""

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
            asked = parameters.get(TTFT_ARGUMENT), parameters.get(TPOT_ARGUMENT)
            granted = self._policy.grant(*asked, request.priority, tokens)
            self.clamped.update(granted.clamped)
            track = Track(
                now_s - age_s,
                tokens,
                granted.ttft_slo_s,
                PACE * granted.tpot_slo_s,
                granted.priority,
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

    def deadlines_s(self, decodes: list[Request], now_s: float, least_pace_s: float) -> list[float]:
        """When each running decode's next token is due; inf for those without a first token.

        Those whose pace is below `least_pace_s` don't count; those too far behind their pace
        are paced anew from `now_s`.
        """
        due_s = self._due_s(decodes, least_pace_s)
        behind_s = now_s - self._policy.most_behind_s
        if min(due_s, default=now_s) >= behind_s:
            return due_s
        for request in decodes:
            track = self._tracks.get(request.request_id)
            if track is not None:
                next_s = track.origin_s + request.num_computed_tokens * track.pace_s
                if next_s < behind_s:
                    track.origin_s += now_s + track.pace_s - next_s
        return self._due_s(decodes, least_pace_s)

    def _due_s(self, decodes: list[Request], least_pace_s: float) -> list[float]:
        get = self._tracks.get
        return [
            track.origin_s + request.num_computed_tokens * track.pace_s
            for request in decodes
            if (track := get(request.request_id)) is not None and track.pace_s >= least_pace_s
        ]
