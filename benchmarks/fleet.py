"""Fleets of real engines: how soon they serve, and what is lost when something ends.

*start*: `make serve` beside the same engines started by hand with the commands that
`headway up --dry-run` prints, one after the other. *killed*: kill -9 of each kind of process of
an engine in turn, two engines, under traffic. *rolling*: `headway restart` of a pool of two, and
of a pool of one, under traffic. *left*: any process of the fleet killed at a random moment, and
what is still there after the fleet's end.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from headway import processes
from headway.bench.engines.options import end_cleanly_on_sigterm
from headway.bench.engines.processes import free_ports
from headway.bench.fleet.alone import engines_alone_s
from headway.bench.fleet.measured import (
    KILLED,
    LEFT,
    PARTS,
    ROLLING,
    START,
    FleetEnding,
    FleetStart,
    Kill,
    Measured,
    Rolling,
    goals,
    slowest,
    tables,
)
from headway.bench.fleet.running import HEADWAY, Around, Running, running
from headway.bench.fleet.traffic import Traffic, first_token_s
from headway.bench.report import document as report
from headway.bench.report.document import ProgressLines

ROOT: Final = Path(__file__).resolve().parents[1]
KILLABLE: Final = ("guard", "worker", "engine core", "API server")
SETTLE_S: Final = 5.0
"""Of traffic before something is done, and after."""
KILL_WITHIN_S: Final = 40.0
SUPERVISOR_SHARE: Final = 0.25
REPEATS: Final = 2
KILLS: Final = 20
QUICK_KILLS: Final = 4

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


class Bench:
    """One run."""

    def __init__(self, options: argparse.Namespace, progress: ProgressLines) -> None:
        self._repeats = options.repeats or (1 if options.quick else REPEATS)
        self._kills = QUICK_KILLS if options.quick else KILLS
        self._parts = frozenset(options.parts)
        self._rng = random.Random(options.seed)
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
        with running(["make", "serve"], ROOT) as fleet:
            fleet.until_ready()
            first = first_token_s(fleet.url, fleet.model)
            self._note(self.found.endings, FleetEnding("SIGTERM", fleet.end()))
            return first - fleet.start_s

    def _unified(self, replicas: int, work: Any) -> None:
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


def main() -> int:
    """Measure, print tables and, if asked, write the report; 1 if it couldn't measure."""
    options = _options()
    end_cleanly_on_sigterm()
    bench = Bench(options, ProgressLines(sys.stderr))
    found = bench.run()
    targets = goals(found, options.parts)
    print(tables(found), report.goals_table(targets), sep="\n\n")
    if options.json is not None:
        configuration = {
            "parts": options.parts,
            "repeats": options.repeats,
            "quick": options.quick,
            "file": POOL,
            "kills": QUICK_KILLS if options.quick else KILLS,
        }
        made = report.document(
            seed=options.seed, configuration=configuration, raw=asdict(found), targets=targets
        )
        report.write(options.json, made)
    return 0


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--repeats", type=int, help=f"starts, and kills of each kind (default: {REPEATS})")
    add("--seed", type=int, default=1, help="of what is killed at random, and when")
    add("--quick", action="store_true", help=f"one repeat, {QUICK_KILLS} random kills")
    parts = ",".join(PARTS)
    add("--parts", metavar="A,B", default=parts, help=f"of {parts} (default: all)")
    add("--json", type=Path, metavar="PATH", help="write the report here")
    options = made.parse_args()
    options.parts = options.parts.split(",")
    if unknown := sorted(set(options.parts) - set(PARTS)):
        made.error(f"--parts: unknown {unknown[0]!r}; known are: {parts}")
    if options.repeats is not None and options.repeats < 1:
        made.error(f"--repeats is {options.repeats}; use 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
