"""Loaders for published traces, scaled to the engine at hand.

Formats: the Azure LLM inference traces (CSV; Splitwise, ISCA 2024) and the
Mooncake traces (JSON lines; FAST 2025).
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from headway.bench.load.workload import LONG, SHORT, Arrival, Workload
from headway.core.errors import HeadwayError

MOONCAKE_BLOCK_TOKENS: Final = 512
AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceError(HeadwayError, ValueError):
    """A trace file that can't be read; says where and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How a trace is fitted to an engine.

    prompt, output: factors on lengths (the result is at least 1 token).
    rate: factor on the rate of arrivals; 2 plays the trace twice as fast.
    long_prompt_tokens: prompts above this, after scaling, are of class `long`.
    max_prompt_tokens, max_output_tokens: caps after scaling.
    start_s, duration_s: the part of the trace to play, in trace time before
        the rate is scaled.
    shared_prefixes: keep the prefixes that a trace says requests share.
    """

    prompt: float = 1.0
    output: float = 1.0
    rate: float = 1.0
    long_prompt_tokens: int = 1_000
    max_prompt_tokens: int = 8_000
    max_output_tokens: int = 1_000
    start_s: float = 0.0
    duration_s: float = float("inf")
    shared_prefixes: bool = False

    def __post_init__(self) -> None:
        for name in ("prompt", "output", "rate", "duration_s"):
            if not getattr(self, name) > 0:
                raise TraceError(f"{name} is {getattr(self, name)}; use a number above 0")


@dataclass(frozen=True, slots=True)
class _Row:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def azure(path: Path, scaling: Scaling) -> Workload:
    """A workload from an Azure CSV: TIMESTAMP, ContextTokens, GeneratedTokens."""
    with path.open(newline="") as lines:
        return _scaled(_azure_rows(path, lines), scaling)


def mooncake(path: Path, scaling: Scaling) -> Workload:
    """A workload from Mooncake JSON lines: timestamp (ms), lengths, hash_ids."""
    with path.open() as lines:
        return _scaled(_mooncake_rows(path, lines), scaling)


def _azure_rows(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
    reader = csv.DictReader(lines)
    if not set(AZURE_COLUMNS) <= set(reader.fieldnames or ()):
        raise TraceError(f"{path}: columns are {reader.fieldnames}; expected {AZURE_COLUMNS}")
    first: datetime | None = None
    for number, row in enumerate(reader, start=2):
        try:
            # Seven decimals of a second; datetime takes six.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            first = first or at
            yield _Row(
                (at - first).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"])
            )
        except (ValueError, TypeError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from error


def _mooncake_rows(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield _Row(
                row["timestamp"] / 1_000,
                int(row["input_length"]),
                int(row["output_length"]),
                tuple(row.get("hash_ids", ())),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise TraceError(f"{path}, line {number}: {error!r}") from error


def _scaled(rows: Iterator[_Row], scaling: Scaling) -> Workload:
    end_s = scaling.start_s + scaling.duration_s
    arrivals = [_arrival(row, scaling) for row in rows if scaling.start_s <= row.at_s < end_s]
    arrivals.sort(key=lambda arrival: arrival.at_s)
    last_s = arrivals[-1].at_s if arrivals else 0.0
    offered_s = scaling.duration_s / scaling.rate
    return Workload(tuple(arrivals), offered_s if math.isfinite(offered_s) else max(last_s, 1.0))


def _arrival(row: _Row, scaling: Scaling) -> Arrival:
    prompt = min(max(round(row.prompt_tokens * scaling.prompt), 1), scaling.max_prompt_tokens)
    output = min(max(round(row.output_tokens * scaling.output), 1), scaling.max_output_tokens)
    block_tokens = max(round(MOONCAKE_BLOCK_TOKENS * scaling.prompt), 1)
    # The last block of a prompt is rarely full and never shared in part.
    blocks = row.blocks[: prompt // block_tokens] if scaling.shared_prefixes else ()
    return Arrival(
        at_s=(row.at_s - scaling.start_s) / scaling.rate,
        length_class=LONG if prompt > scaling.long_prompt_tokens else SHORT,
        prompt_tokens=prompt,
        output_tokens=output,
        prefix_blocks=blocks,
        block_tokens=block_tokens if blocks else 0,
    )
