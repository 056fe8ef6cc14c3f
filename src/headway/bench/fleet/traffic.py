"""Short streamed completions, a few at a time, and what became of each."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from headway.bench.load.stream import ERROR_EVENT

CLIENTS: Final = 4
PAUSE_S: Final = 0.1
PROMPT_TOKENS: Final = 40
OUTPUT_TOKENS: Final = 24
PATIENCE_S: Final = 180.0
REFUSALS: Final = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class TrafficAnswer:
    """One request. Times are monotonic seconds.

    first_s: when the first byte of an answer came, None if none did; an error isn't one.
    status: 0 if there was no answer at all. whole: it got all it asked for.
    invited: a refusal that says when to come again (Retry-After).
    """

    sent_s: float
    first_s: float | None
    status: int
    whole: bool
    invited: bool
    error: str | None

    @property
    def refused(self) -> bool:
        """Turned away with an invitation: not served, and not failed."""
        return self.status in REFUSALS and self.invited

    @property
    def cut(self) -> bool:
        """It failed after its first byte."""
        return self.status == http.client.OK and self.first_s is not None and not self.whole

    @property
    def unserved(self) -> bool:
        """It failed without a byte of an answer."""
        return not self.whole and not self.cut and not self.refused


class Traffic:
    """Requests to one model, one after the other in each of some threads, within `with`."""

    def __init__(self, url: str, model: str, clients: int = CLIENTS) -> None:
        self.answers: list[TrafficAnswer] = []
        self._url = url
        self._model = model
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(number,)) for number in range(clients)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _send(self, client: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            # Prompts differ, so that no prefix cache answers for an engine.
            start = 1000 + (client * 7919 + number * 104_729) % 20_000
            prompt = range(start, start + PROMPT_TOKENS)
            self.answers.append(ask(self._url, self._model, prompt, OUTPUT_TOKENS))
            self._over.wait(PAUSE_S)


def ask(url: str, model: str, prompt: Sequence[int], output_tokens: int) -> TrafficAnswer:
    """One request, to its end."""
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    place = urlsplit(url)
    sent_s = time.monotonic()
    first_s, status, whole, invited, error = None, 0, False, False, None
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        try:
            kind = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), kind)
            answer = connection.getresponse()
            status, invited = answer.status, answer.headers["Retry-After"] is not None
            got = answer.read(1)
            first_s = time.monotonic() if got else None
            got += answer.read()
            if got.startswith(ERROR_EVENT):
                first_s = None
            whole = status == http.client.OK and b"[DONE]" in got and ERROR_EVENT not in got
            error = None if whole else got[-300:].decode(errors="replace")
        except (OSError, http.client.HTTPException) as failure:
            error = repr(failure)
    return TrafficAnswer(sent_s, first_s, status, whole, invited, error)


def first_token_s(url: str, model: str) -> float:
    """When a first token came (monotonic). Raises OSError if none does."""
    answer = ask(url, model, range(1000, 1008), 1)
    if answer.first_s is None or not answer.whole:
        raise OSError(f"{url} gave no token: {answer.error}")
    return answer.first_s


def fetch(url: str, path: str) -> tuple[int, bytes]:
    """Status and body of a GET. Raises OSError or HTTPException."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=10.0)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
