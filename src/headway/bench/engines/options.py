"""Options that the engine benchmarks share."""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.bench.engines.arms import ARMS
from headway.core.batching.settings import STOCK


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One run of a benchmark.

    arms: in the order of `ARMS`, `vllm` always among them.
    repeats: how often everything is measured; None for the script's own number.
    tuned_threshold: of `vllm-tuned`, tokens; None to search for the best.
    """

    arms: tuple[str, ...]
    repeats: int | None
    seed: int
    quick: bool
    json: Path | None
    model: str | None
    tuned_threshold: int | None

    def plain(self) -> dict[str, Any]:
        """For the report's configuration: all that changes what is measured."""
        values = asdict(self)
        del values["json"], values["seed"]
        return {**values, "model": self.model or "bundled"}


def parser(description: str, tuned_threshold: int) -> argparse.ArgumentParser:
    """A parser of the common options; a script adds its own before `read`.

    tuned_threshold: what `vllm-tuned` uses unless told or tuned otherwise, tokens.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = made.add_argument
    add("--arms", metavar="A,B", help=f"of {','.join(ARMS)}; vllm always runs")
    add("--repeats", type=int, help="how often everything is measured")
    add("--seed", type=int, default=1, help="of arrivals, lengths and prompts")
    add("--quick", action="store_true", help="a shorter run of the same shape")
    add("--json", type=Path, metavar="PATH", help="write the report here")
    add("--model", help="path or hub name, instead of the bundled model")
    add("--tuned-threshold", type=int, default=tuned_threshold, help="of vllm-tuned, tokens")
    add("--tune", action="store_true", help="search vllm-tuned's threshold first")
    return made


def read(
    made: argparse.ArgumentParser, arms: Sequence[str], quick_arms: Sequence[str]
) -> tuple[BenchOptions, argparse.Namespace]:
    """The common options and all values; ends the process with a message if one is bad.

    arms, quick_arms: what runs unless `--arms` says otherwise.
    """
    values = made.parse_args()
    default = quick_arms if values.quick else arms
    chosen = set(values.arms.split(",") if values.arms else default) | {STOCK}
    if unknown := sorted(chosen - set(ARMS)):
        made.error(f"--arms: unknown {unknown[0]!r}; known are: {', '.join(ARMS)}")
    if len(chosen) < len({STOCK}) + 1:
        made.error("--arms: name at least one arm to compare with vllm")
    if values.repeats is not None and values.repeats < 1:
        made.error(f"--repeats is {values.repeats}; use 1 or more")
    options = BenchOptions(
        arms=tuple(arm for arm in ARMS if arm in chosen),
        repeats=values.repeats,
        seed=values.seed,
        quick=values.quick,
        json=values.json,
        model=values.model,
        tuned_threshold=None if values.tune else values.tuned_threshold,
    )
    return options, values


def end_cleanly_on_sigterm() -> None:
    """Turn SIGTERM into an ordinary exit, so that `with` blocks stop their engines."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
