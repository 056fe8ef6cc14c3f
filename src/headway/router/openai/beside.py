"""Large bodies are read beside the event loop, in a process of their own.

A thread wouldn't do: Python's JSON parser lets no other run until it is through.
"""

import asyncio
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from headway.core.errors import HeadwayError
from headway.core.routing.route import RETRY_AFTER_S
from headway.router.openai import jobs
from headway.router.openai.answers import is_whole
from headway.router.openai.asked import Settled, Terms
from headway.router.openai.job_process import HEAD, READY
from headway.router.openai.request import Parsed, parse
from headway.router.wire.errors import BodyError
from headway.router.wire.pieces import Body, gathered, joined, parts_of

LANE_BYTES: Final = 1 << 22
"""Bodies up to this size don't wait for larger ones."""
_READ_BYTES: Final = 1 << 18
_END_BYTES: Final = 4_096
COMMAND: Final = (sys.executable, "-m", "headway.router.openai.job_process")
_TRIES: Final = 2


class BodyUnreadable(BodyError):  # noqa: N818 - the name says what happened
    """The process that read the body ended before it was through, more than once."""

    headers = ((b"retry-after", b"%d" % RETRY_AFTER_S),)

    def __init__(self) -> None:
        message = "the body could not be read: whatever reads it ends, perhaps for want of memory"
        super().__init__(503, message)


class _Ended(HeadwayError):  # noqa: N818 - says what happened
    """The process ended in the middle of a job."""


class _NotStarted(HeadwayError):  # noqa: N818 - says what happened
    """There can be no process."""


class BodyReader:
    """Reads bodies: light ones at once, others in processes that are started when needed.

    say: told when no process can be started. Bodies are read on the event loop then.
    A job whose caller is cancelled ends its process, and the next starts another.
    """

    def __init__(self, say: Callable[[str], None], command: tuple[str, ...] = COMMAND) -> None:
        self._say = say
        self._warned = False
        self._lanes = (_Lane(command), _Lane(command))

    async def request(self, path: str, body: Body, terms: Terms, *, splits: bool) -> Parsed:
        """A request to one of ENDPOINTS; see `parse`. splits: it may be wanted in two legs.

        Raises BodyError.
        """
        if isinstance(body, bytes) and jobs.is_light(body):
            return parse(path, body, terms)
        parsed: Parsed
        parsed, (changed, prefill) = await self._do(
            jobs.large_request, body, path=path, terms=terms, splits=splits
        )
        if parsed.large is None:
            raise TypeError("a large request without what was worked out of it")
        large = parsed.large._replace(prefill=prefill)
        return parsed._replace(body=changed if parsed.must_change else body, large=large)

    async def passed(self, body: Body, terms: Terms) -> tuple[Body, Settled]:
        """What is passed on of a body that doesn't generate, or may. Raises BodyError."""
        settled, made = await self._do(jobs.passed_request, body, terms=terms)
        return made[0] if settled.changed else body, settled

    async def prefill_answer(self, body: Body) -> tuple[Mapping[str, Any] | None, int | None, bool]:
        """Handoff parameters, count of prompt tokens, and whether it is whole."""
        found: tuple[Mapping[str, Any] | None, int | None, bool]
        found, _ = await self._do(jobs.prefill_answer, body)
        return found

    async def is_whole(self, body: Body, *, framed: bool) -> bool:
        """Whether an answer is all there; see `answers.is_whole`."""
        if framed:
            return is_whole(body if isinstance(body, bytes) else body.end(_END_BYTES), framed=True)
        return bool((await self._do(jobs.whole_answer, body))[0])

    async def clean_answer(self, body: Body, *, cached_tokens: int | None) -> Body:
        """An answer as the client may see it; see `strip_answer`. Raises AnswerError."""
        changed, made = await self._do(jobs.clean_answer, body, cached_tokens=cached_tokens)
        return made[0] if changed else body

    def stop(self) -> None:
        """End the processes."""
        for lane in self._lanes:
            lane.end()

    async def _do(
        self, job: Callable[..., jobs.Done], body: Body, **arguments: Any
    ) -> tuple[Any, list[Body]]:
        """Here or beside. Raises what the job raises; BodyUnreadable."""
        if jobs.is_light(body):
            return _here(job, body, arguments)
        lane = self._lanes[len(body) > LANE_BYTES]
        try:
            answer, made = await lane.do(job.__name__, arguments, body)
        except _NotStarted as error:
            if not self._warned:
                self._say(f"warning: large bodies hold others up: no process can start: {error}")
            self._warned = True
            return _here(job, body, arguments)
        if isinstance(answer, HeadwayError):
            raise answer
        return answer, made


def _here(
    job: Callable[..., jobs.Done], body: Body, arguments: Mapping[str, Any]
) -> tuple[Any, list[Body]]:
    answer, made = job(joined(body), **arguments)
    return answer, [*made]


class _Lane:
    """One process, and those who wait for it in turn."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def do(
        self, name: str, arguments: Mapping[str, Any], body: Body
    ) -> tuple[Any, list[Body]]:
        """The job's value, or the error it raised, and the bodies it made.

        Raises BodyUnreadable, _NotStarted.
        """
        async with self._turn:
            for _ in range(_TRIES):
                try:
                    return await self._once(pickle.dumps((name, arguments)), body)
                except _Ended:
                    self.end()
                except BaseException:
                    self.end()  # it is in the middle of the job, and nobody will take the answer
                    raise
        raise BodyUnreadable

    def end(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        link, self._link = self._link, None
        if process is not None:
            process.kill()
            process.wait()
        if link is not None:
            link[1].transport.abort()

    async def _once(self, job: bytes, body: Body) -> tuple[Any, list[Body]]:
        reader, writer = self._link or await self._start()
        try:
            writer.write(HEAD.pack(len(job), len(body)) + job)
            for part in parts_of(body):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)  # a process that keeps up doesn't make this wait
            size, _ = HEAD.unpack(await reader.readexactly(HEAD.size))
            answer, sizes = pickle.loads(await reader.readexactly(size))  # noqa: S301  our own
            return answer, [await _body(reader, each) for each in sizes]
        except (OSError, EOFError) as error:
            raise _Ended(str(error)) from error

    async def _start(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _begun(self._command, theirs)
            self._link = link = await asyncio.open_unix_connection(sock=ours)
            if await link[0].read(1) == READY:
                return link
        except OSError as error:
            ours.close()
            self.end()
            raise _NotStarted(str(error)) from error
        self.end()
        raise _NotStarted("it ends at once")


def _begun(command: tuple[str, ...], link: socket.socket) -> subprocess.Popen[bytes]:
    # Ctrl-C reaches the router alone, which ends the process when its own answers have ended.
    return subprocess.Popen(
        command, stdin=link.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
    )


async def _body(reader: asyncio.StreamReader, size: int) -> Body:
    parts = []
    while size:
        part = await reader.read(min(size, _READ_BYTES))
        if not part:
            raise EOFError("cut short")
        parts.append(part)
        size -= len(part)
    return gathered(parts)
