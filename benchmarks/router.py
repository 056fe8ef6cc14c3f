"""What a router costs: headway and vllm-router (Rust) before stub engines, and no router.

The stub engines and the load generator share one core, the router under test has the
other. In every repeat all routers are started afresh, stay up side by side, and take
the same cells in turn: 64, 512 and 4,096 concurrent streams, and short requests that
aren't streamed, in a closed loop. Unified and disaggregated.
"""

import argparse
import sys
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Final

from headway.bench.engines.options import end_cleanly_on_sigterm
from headway.bench.report import document as report
from headway.bench.report.document import ProgressLines
from headway.bench.router import arms, figures
from headway.bench.router.bench import RUNS, STOLEN_SHARE, CellPlan, RouterBench, cores
from headway.bench.router.figures import MANY_STREAMS, SHORT, STREAMS
from headway.bench.router.tables import tables

CONNECTIONS: Final = 64
"""Of the closed loop."""
SEED: Final = 1
PACKAGES: Final = ("httptools", "uvloop", "prometheus_client")

# Of 4,096 streams each is slow: the load generator must keep up, and so many at 20 tokens/s
# would be more than a core. Nothing arrives beside them, as they are headway's default ceiling.
PLANS: Final = (
    CellPlan(STREAMS, 64, 8.0, probe_s=10.0, probes_per_s=100.0),
    CellPlan(STREAMS, 512, 8.0, ramp_s=2.0, probe_s=10.0, probes_per_s=100.0),
    CellPlan(SHORT, CONNECTIONS, 6.0, prompt_bytes=200),
    CellPlan(STREAMS, MANY_STREAMS, 8.0, gap_s=0.5, ramp_s=8.0, settle_s=2.0),
)
REPEATS: Final = 5
QUICK_SHARE: Final = 0.25
"""Of the windows and probes."""


def quick(plan: CellPlan) -> CellPlan:
    """The same cell in less time."""
    return replace(plan, window_s=plan.window_s * QUICK_SHARE, probe_s=plan.probe_s * QUICK_SHARE)


def main() -> int:
    """Measure, print the tables and, if asked, write the report; 1 if something failed."""
    options = _options()
    end_cleanly_on_sigterm()
    bench = RouterBench(
        names=options.arms,
        plans=[quick(plan) for plan in PLANS] if options.quick else PLANS,
        cores=cores(shared=options.shared_cores),
        progress=ProgressLines(),
    )
    repeats = options.repeats or (1 if options.quick else REPEATS)
    bench.run(repeats)
    streams = [plan.streams for plan in bench.plans if plan.kind == STREAMS]
    found = figures.goals(bench.cells, streams, CONNECTIONS)
    shown = tables(bench.cells, bench.plans, options.arms)
    print(shown, report.goals_table(found), sep="\n\n")
    if options.json is not None:
        configuration = {
            "arms": options.arms,
            "repeats": repeats,
            "quick": options.quick,
            "loads": [asdict(plan) for plan in bench.plans],
            "cores": bench.cores,
            "stolen_share": STOLEN_SHARE,
            "runs": RUNS,
            "vllm_router": arms.VERSION,
            "packages": {name: metadata.version(name) for name in PACKAGES},
            "failures": bench.failures,
        }
        made = report.document(seed=SEED, configuration=configuration, raw=bench.raw, targets=found)
        report.write(options.json, made)
    return int(bool(bench.failures))


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--repeats", type=int, help=f"how often everything is measured (default: {REPEATS})")
    add("--quick", action="store_true", help="a shorter run of the same shape, once")
    add("--json", type=Path, metavar="PATH", help="write the report here")
    add(
        "--arms",
        metavar="A,B",
        default=",".join(arms.ARMS[1:]),
        help=f"of {', '.join(arms.ARMS[1:])} (default: all); {arms.DIRECT} always runs",
    )
    add("--shared-cores", action="store_true", help="bind nothing to a core")
    options = made.parse_args()
    options.arms = [name for name in options.arms.split(",") if name != arms.DIRECT]
    if unknown := sorted(set(options.arms) - set(arms.ARMS)):
        made.error(f"--arms: unknown {unknown[0]!r}; known are: {', '.join(arms.ARMS)}")
    if options.repeats is not None and options.repeats < 1:
        made.error(f"--repeats is {options.repeats}; use 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
