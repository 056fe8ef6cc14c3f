"""The machine: events in, actions out."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from headway.core.errors import HeadwayError, SettingError
from headway.core.handoff.actions import (
    AbortDecode,
    AbortPrefill,
    Actions,
    Answer,
    Count,
    Drop,
    Params,
    Release,
    SendDecode,
    SendPrefill,
    SendWhole,
    WholeReason,
)
from headway.core.handoff.params import valid_params
from headway.core.handoff.states import (
    AND_PREFILL,
    CUSTODY,
    TRANSITIONS,
    Custody,
    Event,
    Releaser,
    State,
)

NO_PARAMS: Final[Params] = MappingProxyType({})


class HandoffError(HeadwayError):
    """An event that can't happen in the present state: a fault of the host."""


class Handoff:
    """The state of one disaggregated request. Times are seconds on one monotonic clock.

    lease_s: how long the prefill engine keeps the KV after it answered.
    safe_age_s: until when after that answer a handoff may be sent; at most `lease_s`.
    retries: how often a failed leg may be sent again, over the request's whole life, however
    willing the host is.

    `again` in the failure events says that the host could send another leg: the retry
    budget allows it and an engine that hasn't failed this request is ready.
    `status` there is the engine's, or 0 where it gave no answer (refused, died, timed out,
    unreadable head). 502 and 504 come from something in between and count as no answer. A 2xx
    is an answer that was cut short or unreadable.
    """

    def __init__(self, id: str, lease_s: float, safe_age_s: float, *, retries: int = 16) -> None:  # noqa: A002  a request's id is called id everywhere
        if not 0 < safe_age_s <= lease_s:
            raise SettingError(
                "safe_age_s", f"is {safe_age_s}; use more than 0 and at most lease_s ({lease_s})"
            )
        self.id = id
        self.fallback: WholeReason | None = None
        """Why the request is served whole, once it is."""
        self._state = State.NEW
        self._lease_s = lease_s
        self._safe_age_s = safe_age_s
        self._retries = retries
        self._params = NO_PARAMS
        self._ready_s = 0.0
        self._releases = 0
        self._left_until_s = float("-inf")

    @property
    def state(self) -> State:
        """Where the request is."""
        return self._state

    @property
    def over(self) -> bool:
        """Nothing is left to do and no event can come."""
        return not TRANSITIONS[self._state] and not self._releases

    def custody(self, now_s: float) -> Custody:
        """Who holds KV of this request and who must release it.

        What can't be known is answered on the safe side: a lease is taken to last its whole
        time, and the decode engine to hold blocks as soon as it may have been reached.
        """
        holder, releasers = CUSTODY[self._state]
        if self._releases:
            releasers |= {Releaser.RELEASE}
        if self._left_until_s > now_s:
            releasers |= {Releaser.LEASE}
        if releasers & {Releaser.RELEASE, Releaser.LEASE}:
            holder = AND_PREFILL[holder]
        return Custody(holder, releasers)

    def start(self, now_s: float) -> Actions:
        """The request's first event."""
        self._check(Event.START)
        return self._prefill()

    def prefill_answered(self, params: object, now_s: float) -> Actions:
        """The prefill leg ended well; `params` as parsed from its answer, whatever they are."""
        self._check(Event.PREFILL_ANSWERED)
        if not isinstance(params, Mapping) or not params:
            return Count("failed"), *self._whole("no handoff")
        if (why := valid_params(params)) is not None:
            return *self._strand(why, now_s), *self._whole("bad handoff")
        self._params, self._ready_s = params, now_s
        self._state = State.READY
        return (SendDecode(params),)

    def prefill_failed(
        self, status: int, now_s: float, *, again: bool = False, too_long: bool = False
    ) -> Actions:
        """The prefill leg failed. `too_long`: its engine refused the prompt's length.

        A 4xx is the client's answer, since decode engines would only say the same; but one
        about length isn't, since theirs was checked before.
        """
        self._check(Event.PREFILL_FAILED)
        lost: Actions = (Count("failed"),)
        if _unanswered(status):
            lost = AbortPrefill(), *lost
        elif 200 <= status < 300:
            lost = self._strand("the prefill answer was unreadable", now_s)
        if too_long:
            return *lost, *self._whole("prefill refused length")
        if _refused(status):
            return *lost, *self._error(status)
        if again and self._retry():
            return *lost, *self._prefill()
        return *lost, *self._whole("prefill failed")

    def decode_sent(self, now_s: float) -> Actions:
        """Asked right before the decode leg's first byte leaves; () means that it may.

        Otherwise the handoff got too old, and what is answered is done instead.
        """
        self._check(Event.DECODE_SENT)
        if not self._fresh(now_s):
            return self._too_old()
        self._state = State.PULLING
        return ()

    def decode_first_byte(self, now_s: float) -> Actions:
        """The first byte of a successful answer's body came, of either kind of leg.

        The head proves nothing: vLLM sends a stream's head before it has the KV.
        """
        self._check(Event.DECODE_FIRST_BYTE)
        pulled = self._state is State.PULLING
        self._take()
        self._state = State.DECODING
        return (Count("used"),) if pulled else ()

    def decode_failed(self, status: int, now_s: float, *, again: bool = False) -> Actions:
        """The leg on the decode engine failed, of either kind; READY: before any byte left."""
        self._check(Event.DECODE_FAILED)
        if self._state is State.READY:
            return self._unsent(status, now_s, again=again)
        cut: Actions = () if _answered(status) else (AbortDecode(),)
        if self._state is State.DECODING:
            return *cut, *self._error(status, in_band=True)
        pulling = self._state is State.PULLING
        lost = self._unpulled(status, now_s) if pulling else ()
        if not again or _refused(status) or not self._retry():
            return *cut, *lost, *self._error(status)
        next_leg = self._prefill() if pulling else self._whole(self.fallback or "prefill failed")
        return *cut, *lost, *next_leg

    def decode_done(self, now_s: float) -> Actions:
        """The leg on the decode engine ended well."""
        self._check(Event.DECODE_DONE)
        self._state = State.DONE
        return ()

    def client_left(self, now_s: float) -> Actions:
        """The client is gone; whatever runs for it is cut."""
        self._check(Event.CLIENT_LEFT)
        state, self._state = self._state, State.ABORTED
        if state is State.NEW:
            return ()
        if state is State.PREFILLING:
            return AbortPrefill(), Count("aborted")
        if state is State.READY:
            return AbortDecode(), *self._free(now_s)
        self._take()
        return (AbortDecode(), Count("released")) if state is State.PULLING else (AbortDecode(),)

    def release_ended(self, now_s: float, *, freed: bool) -> Actions:
        """A `Release` ended; `freed`: the decode engine took it."""
        if not self._releases:
            raise HandoffError(f"request {self.id}: release_ended while no release is under way")
        self._releases -= 1
        if freed:
            return (Count("released"),)
        return self._strand("the release failed", now_s)

    def _check(self, event: Event) -> None:
        legal = TRANSITIONS[self._state]
        if event not in legal:
            raise HandoffError(
                f"request {self.id}: {event.value} while {self._state.value}; "
                f"possible: {_names(legal) or 'nothing'}"
            )

    def _prefill(self) -> Actions:
        self._state = State.PREFILLING
        return SendPrefill(), Count("started")

    def _whole(self, reason: WholeReason) -> Actions:
        self._state = State.FALLEN_BACK
        if self.fallback is not None:
            return (SendWhole(reason),)
        self.fallback = reason
        return SendWhole(reason), Count("fallback")

    def _error(self, status: int, *, in_band: bool = False) -> Actions:
        self._state = State.ABORTED
        return (Answer(status if status >= 400 else 502, in_band),)

    def _retry(self) -> bool:
        self._retries -= 1
        return self._retries >= 0

    def _take(self) -> Params:
        """The parameters, which the machine keeps no longer."""
        params, self._params = self._params, NO_PARAMS
        return params

    def _fresh(self, now_s: float) -> bool:
        return now_s < self._ready_s + self._safe_age_s

    def _unsent(self, status: int, now_s: float, *, again: bool) -> Actions:
        """No decode engine could be reached; the handoff is as good as before."""
        if again and self._retry():
            return (SendDecode(self._params),) if self._fresh(now_s) else self._too_old()
        return *self._free(now_s), *self._error(status)

    def _unpulled(self, status: int, now_s: float) -> Actions:
        """A decode leg that may have been pulling failed.

        An engine that answered is through with the request, so its KV can be released. One
        that gave no answer may yet pull, and would get other prompts' KV if it had been freed.
        """
        if _answered(status):
            return self._free(now_s)
        self._take()
        return self._strand("the decode engine gave no answer", now_s)

    def _free(self, now_s: float) -> Actions:
        if not self._fresh(now_s):
            return self._expire()
        self._releases += 1
        return (Release(self._take()),)

    def _too_old(self) -> Actions:
        return *self._expire(), *self._whole("handoff too old")

    def _expire(self) -> Actions:
        self._take()
        self._leave(self._ready_s + self._lease_s)
        return Drop("it is older than its safe age"), Count("expired")

    def _strand(self, why: str, now_s: float) -> Actions:
        """A decode engine that was waiting may just have renewed the lease."""
        self._leave(now_s + self._lease_s)
        return Drop(why), Count("stranded")

    def _leave(self, until_s: float) -> None:
        self._left_until_s = max(self._left_until_s, until_s)


def _unanswered(status: int) -> bool:
    return status in {0, 502, 504}


def _answered(status: int) -> bool:
    """An error by the engine itself; after it, the engine is through with the request."""
    return status >= 400 and not _unanswered(status)


def _refused(status: int) -> bool:
    return 400 <= status < 500


def _names(events: Iterable[Event]) -> str:
    return ", ".join(event.value for event in events)
