"""`headway route` as a process of its own."""

import asyncio
import contextlib
import json
import os
import re
import sys

import httpx
from tests.router.rules import WAIT_S

READY = re.compile(r"ready on (https?://\S+:\d+) ")


class Process:
    """said: its lines on standard error so far. url: where it listens."""

    def __init__(self, process):
        self.process = process
        self.said = []
        self.url = ""
        self._more = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self):
        async for line in self.process.stderr:
            async with self._more:
                self.said.append(line.decode().rstrip("\n"))
                self._more.notify_all()
        async with self._more:
            self.said.append("")
            self._more.notify_all()

    async def says(self, text, since=0):
        """The first line with `text` in it, from line `since` on; fails if none comes in time."""

        def found():
            return next((line for line in self.said[since:] if text in line), None)

        async with self._more:
            try:
                await asyncio.wait_for(self._more.wait_for(found), WAIT_S)
            except TimeoutError:
                raise AssertionError(f"{text!r} isn't in {self.said}") from None
        return found()

    async def ready(self):
        line = await self.says("ready on ")
        self.url = READY.search(line)[1]

    def signal(self, number):
        self.process.send_signal(number)

    async def ended(self):
        """The exit status; all that it said is in `said` then."""
        async with asyncio.timeout(WAIT_S):
            status = await self.process.wait()
            await self._reading
            return status

    async def log(self):
        """What it wrote on standard output, once it has ended."""
        return [json.loads(line) for line in (await self.process.stdout.read()).splitlines()]


@contextlib.asynccontextmanager
async def route(*flags, ready=True, env=None, files=None):
    """The process, listening; it is gone afterwards. files: that it may have open."""
    command = [sys.executable, "-m", "headway", "route", *flags]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    process = Process(
        await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | (env or {}),
        )
    )
    try:
        if ready:
            await process.ready()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.process.kill()
        await process.process.wait()
        await process._reading


async def served(client, path, body):
    """Posts until an engine is ready; the first answer that isn't for want of one."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(httpx.ConnectError):
                got = await client.post(path, content=body)
                if got.status_code != 503:
                    return got
            await asyncio.sleep(0.05)
