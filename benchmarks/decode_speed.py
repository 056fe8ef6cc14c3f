"""Whether a decode engine decodes as fast as a plain one.

Two engines side by side, one core each, with the same requests at the same moment: a plain one
and one with the KV connector of a decode engine. They exchange cores after a round and are
started anew after two: two plain engines differ too, by up to 7% a round, and what a start leaves
to chance would count in every round. The time per output token is taken over the second half of
each answer, when nothing is prefilled. `--compiled` measures the compiled path instead of
--enforce-eager.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from headway.bench.engines import nixl
from headway.bench.engines.engine import BenchEngine, EngineError, started, swap
from headway.bench.engines.lab import CORES
from headway.bench.engines.options import end_cleanly_on_sigterm
from headway.bench.engines.stage import Stage
from headway.bench.judge.spread import ratios
from headway.bench.load.exchange import Sample
from headway.bench.load.workload import SHORT, Arrival, Workload
from headway.bench.report import document as report
from headway.bench.report.document import Goal, ProgressLines

PLAIN: Final = "plain"
DECODE: Final = "decode"
BATCHES: Final = (1, 4, 8)
BOUND: Final = 1.03
PROMPT_TOKENS: Final = 32
OUTPUT_TOKENS: Final = 96
STARTS: Final = 6
QUICK_STARTS: Final = 1
ROUNDS: Final = 2
FLAGS: Final = ("--max-model-len", "8192", "--max-num-seqs", "64", "--disable-uvicorn-access-log")


@dataclass(frozen=True, slots=True)
class Round:
    """Median seconds a token of each engine, at one batch size."""

    start: int
    batch: int
    core_of_decode: int
    plain_s: float
    decode_s: float


def engine(
    name: str, core: int, options: argparse.Namespace, progress: ProgressLines
) -> BenchEngine:
    """The plain or the decode engine, not yet started."""
    connector = nixl.WITH_CONNECTOR if name == DECODE else ()
    eager = ("--no-enforce-eager",) if options.compiled else ("--enforce-eager",)
    return nixl.engine(name, core, (*FLAGS, *eager, *connector), options.model, progress)


def batch_of(size: int) -> Workload:
    """So many requests at once."""
    return Workload((Arrival(0.0, SHORT, PROMPT_TOKENS, OUTPUT_TOKENS),) * size, 1.0)


def token_s(samples: Sequence[Sample]) -> float:
    """Median seconds a token over the second halves. Raises EngineError if a request failed."""
    times = [sample.token_times_s for sample in samples]
    if any(len(each) < OUTPUT_TOKENS for each in times):
        raise EngineError(f"requests failed: {[s.error for s in samples if s.error]}")
    half = OUTPUT_TOKENS // 2
    return statistics.median((each[-1] - each[half]) / (len(each) - 1 - half) for each in times)


def measure(plain: BenchEngine, decode: BenchEngine, stage: Stage, start: int) -> list[Round]:
    """All batch sizes on engines that are up, once with either on either core."""
    for each in (plain, decode):
        stage.warm_up(each)
    rounds = []
    for _ in range(ROUNDS):
        for size in BATCHES:
            played = stage.play([plain, decode], batch_of(size))
            speeds = [token_s(played[each.name]) for each in (plain, decode)]
            rounds.append(Round(start, size, decode.core, *speeds))
        swap(plain, decode)
    return rounds


def goals(rounds: Sequence[Round]) -> list[Goal]:
    """One a batch size."""
    return [
        Goal(
            f"TPOT of a decode engine / a plain one, batch {size}",
            BOUND,
            at_most=True,
            measured=ratios(
                [each.decode_s for each in rounds if each.batch == size],
                [each.plain_s for each in rounds if each.batch == size],
            ),
        )
        for size in BATCHES
    ]


def main() -> int:
    """Measure, print the table and, if asked, write the report."""
    options = _options()
    end_cleanly_on_sigterm()
    progress = ProgressLines(sys.stderr)
    starts = options.starts or (QUICK_STARTS if options.quick else STARTS)
    stage = Stage(options.seed, progress)
    rounds: list[Round] = []
    for start in range(starts):
        plain = engine(PLAIN, CORES[0], options, progress)
        decode = engine(DECODE, CORES[1], options, progress)
        with started(plain, decode):
            rounds += measure(plain, decode, stage, start)
    found = goals(rounds)
    rows = [
        [each.start + 1, each.batch, each.core_of_decode, each.plain_s * 1e3, each.decode_s * 1e3]
        for each in rounds
    ]
    columns = ["start", "batch", "decode on core", "plain ms/token", "decode ms/token"]
    print(report.table(columns, rows))
    print(report.goals_table(found))
    if options.json is not None:
        configuration = {
            "starts": starts,
            "rounds": ROUNDS,
            "quick": options.quick,
            "compiled": options.compiled,
            "model": options.model or "bundled",
            "flags": FLAGS,
            "connector": nixl.CONNECTOR,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
        }
        made = report.document(
            seed=options.seed,
            configuration=configuration,
            raw=[asdict(each) for each in rounds],
            targets=found,
        )
        report.write(options.json, made)
    return 0


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--starts", type=int, help=f"of the engines (default: {STARTS})")
    add("--seed", type=int, default=1, help="of prompts")
    add("--quick", action="store_true", help="a shorter run of the same shape")
    add("--compiled", action="store_true", help="the compiled path, not --enforce-eager")
    add("--json", type=Path, metavar="PATH", help="write the report here")
    add("--model", help="path or hub name, instead of the bundled model")
    options = made.parse_args()
    if options.starts is not None and options.starts < 1:
        made.error(f"--starts is {options.starts}; use 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
