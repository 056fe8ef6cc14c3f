"""The supervisor's Unix socket: one line of JSON asks, one answers.

An answer is `{"ok": …}`, or `{"error": "what was wrong", "exit_status": …}`, where the status is
what a command that asked ends with.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from headway.core.errors import FAILED, HeadwayError
from headway.core.json_shape import ShapeError
from headway.core.status import FleetStatus, read_value
from headway.fleet.errors import FleetError, NotRunningError
from headway.fleet.operate.state_dir import Home

_LIMIT_BYTES: Final = 1 << 20

Handle = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Answers a request. Raises HeadwayError for one that can't be met."""


def ask(name: str, request: Mapping[str, Any], timeout_s: float | None = None) -> Any:
    """What the supervisor of the fleet `name` answers to a request.

    timeout_s: for the answer; None waits until it comes.

    Raises FleetError with what the supervisor says, and where none answers.
    """
    home = Home(name)
    try:
        with (
            _reachable(home.socket) as path,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline()
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NotRunningError(f"no fleet {name} runs here; {_instead(home)}") from error
    except TimeoutError as error:
        raise FleetError(f"the fleet {name} didn't answer within {timeout_s:g} s") from error
    except OSError as error:
        raise FleetError(f"the fleet {name} can't be asked: {error.strerror}") from error
    return _answer(name, line)


def _instead(home: Home) -> str:
    """What to do where the fleet that was meant doesn't run."""
    others = [other.name for other in home.beside() if other.running()]
    if not others:
        return "start it with headway up"
    return f"what runs: {', '.join(others)} (--name {others[0]})"


def fleet_status(name: str, timeout_s: float) -> FleetStatus:
    """What the supervisor of the fleet `name` says of it. Raises FleetError."""
    try:
        return read_value(FleetStatus, ask(name, {"do": "status"}, timeout_s))
    except ShapeError as error:
        raise FleetError(f"the fleet {name} runs another headway: its status's {error}") from error


def _answer(name: str, line: bytes) -> Any:
    try:
        answer = json.loads(line)
    except ValueError:
        raise FleetError(f"the fleet {name} ended before it answered") from None
    if "error" in answer:
        error = FleetError(answer["error"])
        error.exit_status = answer.get("exit_status", FAILED)
        raise error
    return answer["ok"]


@contextlib.asynccontextmanager
async def served(path: Path, handle: Handle) -> AsyncIterator[None]:
    """Answers at `path` meanwhile. Answers under way at the end are still given."""
    answering: set[asyncio.Task[None]] = set()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        answering.add(task)
        try:
            await _converse(reader, writer, handle)
        finally:
            answering.discard(task)
            writer.close()

    with _reachable(path) as short:
        server = await asyncio.start_unix_server(on_connection, short, limit=_LIMIT_BYTES)
    path.chmod(0o600)  # noqa: ASYNC240  local, and done at once
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240  as above
        if answering:
            await asyncio.wait(answering, timeout=1.0)


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handle
) -> None:
    with contextlib.suppress(ConnectionError):
        try:
            line = await reader.readline()
        except ValueError:
            answer = {"error": f"the request is longer than {_LIMIT_BYTES} bytes"}
        else:
            if not line:
                return
            answer = await _handled(line, handle)
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


async def _handled(line: bytes, handle: Handle) -> dict[str, Any]:
    try:
        request = json.loads(line, object_pairs_hook=_object)
    except FleetError as error:
        return {"error": str(error)}
    except (ValueError, RecursionError):
        return {"error": "the request is not JSON with ordinary numbers and nesting"}
    if not isinstance(request, dict):
        return {"error": 'the request is not an object such as {"do": "status"}'}
    try:
        return {"ok": await handle(request)}
    except HeadwayError as error:
        return {"error": str(error), "exit_status": error.exit_status}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises FleetError for a key that is there twice: which one counts would be a guess."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise FleetError("the request has a key twice")
    return found


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """A path to the same socket that is short enough for the kernel, which takes 107 bytes."""
    folder = os.open(path.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
