"""Trace loaders on small samples of each format."""

import json

import pytest

from headway.bench.load import traces
from headway.bench.load.traces import Scaling, TraceError
from headway.bench.load.workload import LONG, SHORT

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.9799600,318,8
2023-11-16 18:17:13.9799600,20,4000
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 2500, "input_length": 1536, "output_length": 6, "hash_ids": [0, 1, 7]},
]


@pytest.fixture
def azure(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


@pytest.fixture
def mooncake(tmp_path):
    path = tmp_path / "mooncake.jsonl"
    path.write_text("\n".join(map(json.dumps, MOONCAKE)) + "\n")
    return path


def test_azure_times_and_lengths(azure) -> None:
    arrivals = traces.azure(azure, Scaling()).arrivals
    assert [a.at_s for a in arrivals] == [0.0, 1.0, 10.0]
    assert [a.prompt_tokens for a in arrivals] == [4808, 318, 20]
    assert [a.output_tokens for a in arrivals] == [10, 8, 1000]
    assert [a.length_class for a in arrivals] == [LONG, SHORT, SHORT]


def test_scaling_of_lengths_rate_and_part(azure) -> None:
    scaling = Scaling(
        prompt=0.1, output=0.5, rate=2, start_s=1, duration_s=10, long_prompt_tokens=31
    )
    played = traces.azure(azure, scaling)
    assert [a.at_s for a in played.arrivals] == [0.0, 4.5]
    assert [a.prompt_tokens for a in played.arrivals] == [32, 2]
    assert [a.output_tokens for a in played.arrivals] == [4, 1000]
    assert [a.length_class for a in played.arrivals] == [LONG, SHORT]
    assert played.duration_s == 5.0


def test_mooncake_shares_prefixes_only_when_asked(mooncake) -> None:
    plain = traces.mooncake(mooncake, Scaling())
    assert [a.at_s for a in plain.arrivals] == [0.0, 2.5]
    assert all(a.prefix_blocks == () for a in plain.arrivals)
    shared = traces.mooncake(mooncake, Scaling(shared_prefixes=True, prompt=0.5))
    first, second = shared.arrivals
    assert first.block_tokens == second.block_tokens == 256
    assert first.prefix_blocks == (0, 1)
    assert second.prefix_blocks == (0, 1, 7)


def test_errors_name_file_and_line(tmp_path) -> None:
    csv = tmp_path / "bad.csv"
    csv.write_text(AZURE + "yesterday,1,2\n")
    with pytest.raises(TraceError, match="line 5"):
        traces.azure(csv, Scaling())
    csv.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="columns"):
        traces.azure(csv, Scaling())
    jsonl = tmp_path / "bad.jsonl"
    jsonl.write_text('{"timestamp": 1}\n')
    with pytest.raises(TraceError, match="line 1"):
        traces.mooncake(jsonl, Scaling())
    with pytest.raises(TraceError, match="rate"):
        Scaling(rate=0)
