"""Fleets of real engines: how soon they serve, and what is lost when something ends.

*start*: `make serve` beside the same engines started by hand with the commands that
`headway up --dry-run` prints, one after the other. *killed*: kill -9 of each kind of process of
an engine in turn, two engines, under traffic. *rolling*: `headway restart` of a pool of two, and
of a pool of one, under traffic. *left*: any process of the fleet killed at a random moment, and
what is still there after the fleet's end.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from headway.bench.engines.options import end_cleanly_on_sigterm
from headway.bench.fleet.bench import POOL, FleetBench
from headway.bench.fleet.measured import PARTS, goals, tables
from headway.bench.report import document as report
from headway.bench.report.document import ProgressLines

ROOT: Final = Path(__file__).resolve().parents[1]
REPEATS: Final = 2
KILLS: Final = 20
QUICK_KILLS: Final = 4


def main() -> int:
    """Measure, print tables and, if asked, write the report; 1 if it couldn't measure."""
    options = _options()
    end_cleanly_on_sigterm()
    kills = QUICK_KILLS if options.quick else KILLS
    bench = FleetBench(
        root=ROOT,
        parts=options.parts,
        repeats=options.repeats or (1 if options.quick else REPEATS),
        kills=kills,
        seed=options.seed,
        progress=ProgressLines(sys.stderr),
    )
    found = bench.run()
    targets = goals(found, options.parts)
    print(tables(found), report.goals_table(targets), sep="\n\n")
    if options.json is not None:
        configuration = {
            "parts": options.parts,
            "repeats": options.repeats,
            "quick": options.quick,
            "file": POOL,
            "kills": kills,
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
