"""What the router adds to a disaggregated request, on real engines under load.

One prefill and one decode engine, KV over NIXL, each on a core of its own, and a
router that shares those cores with them. Open-loop Poisson traffic, 8% of it long
prompts. The router's own time is what its histograms say: from a request's body to the
departure of its first leg, and from the prefill answer's arrival to the decode leg's departure.
"""

import argparse
import asyncio
import contextlib
import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from headway.bench.engines import nixl
from headway.bench.engines.arms import SLO
from headway.bench.engines.engine import HOST, EngineError
from headway.bench.engines.lab import CORES
from headway.bench.engines.options import end_cleanly_on_sigterm
from headway.bench.engines.processes import free_ports, running
from headway.bench.judge.histogram import bucket_percentile, buckets
from headway.bench.judge.spread import Spread, spread
from headway.bench.load import workload
from headway.bench.load.exchange import Sample, Target
from headway.bench.load.loadgen import play
from headway.bench.load.workload import MIXED
from headway.bench.report import document as report
from headway.bench.report.document import Goal, ProgressLines
from headway.core.slo import percentile

ADDED: Final = "headway:router_added_seconds"
TARGET_S: Final = 0.003
FIRST: Final = "before first leg"
BETWEEN: Final = "between legs"
PLACES: Final = {FIRST: "to the first leg", BETWEEN: "between the legs"}
FLAGS: Final = (
    *("--max-num-batched-tokens", "512", "--max-model-len", "8192", "--max-num-seqs", "64"),
    *("--enforce-eager", "--disable-uvicorn-access-log"),
    *nixl.WITH_CONNECTOR,
)
RATE_PER_S: Final = 0.6
DURATION_S: Final = 90.0
QUICK_S: Final = 30.0
REPEATS: Final = 3
WARM_UP_S: Final = 8.0
READY_S: Final = 60.0
PERCENTS: Final = (50, 99)


@dataclass(frozen=True, slots=True)
class Round:
    """One play of the traffic. added_s: by place, then percentile; None where nothing was seen."""

    sent: int
    failed: int
    split: int
    added_s: dict[str, dict[int, float | None]]
    ttft_s: dict[int, float | None]


class Fleet:
    """The two engines and the router, from `with` to its end."""

    def __init__(self, model: str | None, progress: ProgressLines) -> None:
        self._model = model
        self._progress = progress
        self.port = free_ports(1)[0]

    @contextlib.contextmanager
    def up(self) -> Iterator[Target]:
        """The router's address, once it is ready. Raises EngineError if something isn't."""
        with contextlib.ExitStack() as stack:
            named: list[str] = []
            for role, core in zip(("prefill", "decode"), CORES, strict=True):
                engine = stack.enter_context(
                    nixl.engine(role, core, FLAGS, self._model, self._progress)
                )
                named += [f"--{role}", f"http://{HOST}:{engine.target.port}"]
            command = [sys.executable, "-m", "headway", "route", *named]
            command += ["--port", str(self.port), "--admin-port", "0"]
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            stack.enter_context(running(command, core=None, **pipes))
            self._wait_ready()
            yield Target(HOST, self.port)

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                if fetch(self.port, "/ready")[0] == 200:
                    return
            time.sleep(0.2)
        raise EngineError(f"the router isn't ready after {READY_S:g} s")


def fetch(port: int, path: str) -> tuple[int, str]:
    """Status and body of a GET."""
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=10)) as server:
        server.request("GET", path)
        answer = server.getresponse()
        return answer.status, answer.read().decode()


def look(port: int) -> dict[str, dict[float, float]]:
    """The router's histograms of what it adds, by place."""
    text = fetch(port, "/metrics")[1]
    return {where: buckets(text, ADDED, where) for where in PLACES}


def one_round(target: Target, seed: int, duration_s: float) -> Round:
    """One play of the traffic through the router."""
    made = workload.poisson(RATE_PER_S, duration_s, MIXED, seed)
    before = look(target.port)
    (samples,) = asyncio.run(play([target], made, f"handoff-{seed}"))
    after = look(target.port)
    added = {
        where: {p: bucket_percentile(before[where], after[where], p) for p in PERCENTS}
        for where in PLACES
    }
    ttfts = [each.token_times_s[0] - each.intended_s for each in samples if each.token_times_s]
    return Round(
        sent=len(samples),
        failed=failed(samples),
        split=round(_count(after[BETWEEN]) - _count(before[BETWEEN])),
        added_s=added,
        ttft_s={p: percentile(ttfts, p) for p in PERCENTS},
    )


def failed(samples: tuple[Sample, ...]) -> int:
    """Requests that didn't get all their tokens."""
    return sum(sample.error is not None for sample in samples)


def _count(found: dict[float, float]) -> float:
    return found.get(float("inf"), 0.0)


def goals(rounds: list[Round]) -> list[Goal]:
    """Both places, and that all traffic was really split and answered."""

    def at_most(name: str, bound: float, measured: Spread | None) -> Goal:
        return Goal(name, bound, at_most=True, measured=measured)

    return [
        *(
            at_most(
                f"what the router adds {text}, p99, s",
                TARGET_S,
                spread([each.added_s[where][99] for each in rounds]),
            )
            for where, text in PLACES.items()
        ),
        at_most("failed requests", 0.0, spread([float(each.failed) for each in rounds])),
        at_most(
            "requests that weren't split",
            0.0,
            spread([float(each.sent - each.split) for each in rounds]),
        ),
    ]


def table(rounds: list[Round]) -> str:
    """A row a round, times in milliseconds."""
    headers = ["round", "sent", "split", "failed"]
    headers += [f"{text} p{p} ms" for text in PLACES.values() for p in PERCENTS]
    headers += [f"TTFT p{p} ms" for p in PERCENTS]
    rows = []
    for number, each in enumerate(rounds, 1):
        times = [each.added_s[where][p] for where in PLACES for p in PERCENTS]
        times += [each.ttft_s[p] for p in PERCENTS]
        shown = [None if at_s is None else at_s * 1e3 for at_s in times]
        rows.append([number, each.sent, each.split, each.failed, *shown])
    return report.table(headers, rows)


def main() -> int:
    """Measure, print the table and, if asked, write the report; 1 if it couldn't measure."""
    options = _options()
    end_cleanly_on_sigterm()
    progress = ProgressLines(sys.stderr)
    repeats = options.repeats or (1 if options.quick else REPEATS)
    duration_s = QUICK_S if options.quick else DURATION_S
    rounds = []
    with Fleet(options.model, progress).up() as target:
        one_round(target, 0, WARM_UP_S)
        for number in range(repeats):
            rounds.append(one_round(target, options.seed * 100 + number, duration_s))
            progress.line(f"round {number + 1} of {repeats}: {asdict(rounds[-1])}")
    found = goals(rounds)
    print(table(rounds), report.goals_table(found), sep="\n\n")
    if options.json is not None:
        configuration = {
            "repeats": repeats,
            "quick": options.quick,
            "model": options.model or "bundled",
            "flags": FLAGS,
            "policy": SLO,
            "rate_per_s": RATE_PER_S,
            "duration_s": duration_s,
            "mix": [asdict(each) for each in MIXED],
            "cores": CORES,
        }
        raw = [asdict(each) for each in rounds]
        made = report.document(
            seed=options.seed, configuration=configuration, raw=raw, targets=found
        )
        report.write(options.json, made)
    return 0


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--repeats", type=int, help=f"rounds (default: {REPEATS})")
    add("--seed", type=int, default=1, help="of arrivals, lengths and prompts")
    add("--quick", action="store_true", help="one shorter round")
    add("--json", type=Path, metavar="PATH", help="write the report here")
    add("--model", help="path or hub name, instead of the bundled model")
    options = made.parse_args()
    if options.repeats is not None and options.repeats < 1:
        made.error(f"--repeats is {options.repeats}; use 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
