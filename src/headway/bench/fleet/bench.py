"""One run of the fleet benchmark: fleets are started, watched, hurt and ended."""

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from headway import processes
from headway.bench.engines.processes import free_ports
from headway.bench.fleet.alone import engines_alone_s
from headway.bench.fleet.measured import (
    KILLED,
    LEFT,
    ROLLING,
    START,
    FleetEnding,
    FleetStart,
    Kill,
    Measured,
    Rolling,
    slowest,
)
from headway.bench.fleet.running import HEADWAY, Around, Running, running
from headway.bench.fleet.traffic import Traffic, first_token_s
from headway.bench.report.document import ProgressLines

KILLABLE: Final = ("guard", "worker", "engine core", "API server")
SETTLE_S: Final = 5.0
"""Of traffic before something is done, and after."""
KILL_WITHIN_S: Final = 40.0
SUPERVISOR_SHARE: Final = 0.25

POOL: Final = """\
[router]
port = {port}
admin_port = {admin}
strategy = "unified"

[[pool]]
name = "all"
replicas = {replicas}
kv_memory_gib = 0.5
flags = ["--enforce-eager"]
"""


class FleetBench:
    """One run."""

    def __init__(
        self,
        *,
        root: Path,
        parts: Collection[str],
        repeats: int,
        kills: int,
        seed: int,
        progress: ProgressLines,
    ) -> None:
        """root: where `make serve` is. parts: of `PARTS`. kills: at random; seed: of those."""
        self._root = root
        self._parts = frozenset(parts)
        self._repeats = repeats
        self._kills = kills
        self._rng = random.Random(seed)
        self._progress = progress
        self.found = Measured([], [], [], [])

    def run(self) -> Measured:
        """Measure what is asked for. Raises FleetRunError if a fleet doesn't start or come back."""
        if START in self._parts:
            for number in range(self._repeats):
                self._note(self.found.starts, self._start(serve_first=number % 2 == 0))
        if {KILLED, ROLLING} & self._parts:
            self._unified(2, self._hurt)
        if ROLLING in self._parts:
            self._unified(1, lambda fleet: self._roll(fleet, 1))
        if LEFT in self._parts:
            self._kill_at_random()
        return self.found

    def _note(self, kind: list[Any], what: FleetStart | Kill | Rolling | FleetEnding) -> None:
        kind.append(what)
        self._progress.line(str(what))

    def _start(self, *, serve_first: bool) -> FleetStart:
        if serve_first:
            return FleetStart(self._serve_s(), engines_alone_s())
        alone_s = engines_alone_s()
        return FleetStart(self._serve_s(), alone_s)

    def _serve_s(self) -> float:
        with running(["make", "serve"], self._root) as fleet:
            fleet.until_ready()
            first = first_token_s(fleet.url, fleet.model)
            self._note(self.found.endings, FleetEnding("SIGTERM", fleet.end()))
            return first - fleet.start_s

    def _unified(self, replicas: int, work: Callable[[Running], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
            file = Path(folder) / "headway.toml"
            port, admin = free_ports(2)
            file.write_text(POOL.format(port=port, admin=admin, replicas=replicas))
            with running([*HEADWAY, "up", str(file)]) as fleet:
                fleet.until_ready()
                work(fleet)
                self._note(self.found.endings, FleetEnding("SIGTERM", fleet.end()))

    def _hurt(self, fleet: Running) -> None:
        if KILLED in self._parts:
            for number in range(self._repeats * len(KILLABLE)):
                self._kill(fleet, KILLABLE[number % len(KILLABLE)], number % 2)
        if ROLLING in self._parts:
            self._roll(fleet, 2)

    def _kill(self, fleet: Running, part: str, index: int) -> None:
        status = fleet.status()
        engine = status["engines"][index]
        with Traffic(fleet.url, fleet.model) as traffic:
            time.sleep(SETTLE_S)
            with Around(status["admin"], engine["url"]) as around:
                killed_s = time.monotonic()
                os.kill(fleet.parts(engine)[part], signal.SIGKILL)
                time.sleep(SETTLE_S)
            fleet.until_whole()
            back_s = time.monotonic() - killed_s
            time.sleep(SETTLE_S)
        every = traffic.answers
        out_s = around.out_s
        kill = Kill(
            part,
            engine["name"],
            None if out_s is None else max(0.0, out_s - killed_s),
            len(every),
            sum(each.unserved or each.refused for each in every),
            sum(each.cut for each in every),
            slowest(every),
            back_s,
        )
        self._note(self.found.kills, kill)

    def _roll(self, fleet: Running, replicas: int) -> None:
        with Traffic(fleet.url, fleet.model) as traffic:
            time.sleep(SETTLE_S)
            start_s = time.monotonic()
            fleet.says("restart", "all")
            took_s = time.monotonic() - start_s
            time.sleep(SETTLE_S)
        every = traffic.answers
        rolling = Rolling(
            replicas,
            took_s,
            len(every),
            sum(each.unserved or each.cut for each in every),
            sum(each.refused for each in every),
            slowest(every),
        )
        self._note(self.found.rolls, rolling)
        fleet.look()

    def _kill_at_random(self) -> None:
        """Kills until there were enough; a fleet whose supervisor was killed is followed by one."""
        done = 0
        while done < self._kills:
            with running([*HEADWAY, "up"], None) as fleet:
                last = ""
                while done < self._kills and fleet.process.poll() is None:
                    time.sleep(self._rng.uniform(1.0, KILL_WITHIN_S))
                    fleet.look()
                    last = self._kill_one(fleet)
                    done += 1
                    time.sleep(1.0)
                by = last if fleet.process.poll() is not None else f"SIGTERM after {last}"
                self._note(self.found.endings, FleetEnding(by, fleet.end()))

    def _kill_one(self, fleet: Running) -> str:
        below = sorted(processes.descendants(fleet.process.pid))
        whole = not below or self._rng.random() < SUPERVISOR_SHARE
        pid = fleet.process.pid if whole else self._rng.choice(below)
        named = "supervisor" if whole else _name(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._progress.line(f"killed {named}")
        return f"kill -9 of {named}"


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if words[0].startswith("VLLM::"):
            return words[0]
        for sign in ("headway.engine.start.guard", "api_server", "route", "headway.engine"):
            if any(sign in word for word in words):
                return sign
        return Path(words[0]).name or "a process"
    return "a process"
