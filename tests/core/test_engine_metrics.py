"""What an engine tells on /metrics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine_metrics import NO_FAULTS, EngineMetrics, Fallback, parse_metrics

METRICS = b"""\
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1200.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 77.0
vllm:request_success_total{engine="0",finished_reason="abort"} 3.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",x="y"} 1.0
vllm:nixl_bytes_transferred_sum{engine="0"} 5e+03
headway:steps_total 99.0
headway:prefill_tokens_total 12.0
"""


def test_figures_are_sums_over_the_ranks():
    told = parse_metrics(METRICS)
    assert (told.running, told.waiting) == (3, 4)
    assert told.kv_capacity_tokens == 1600
    assert told.kv_bytes == 5000
    assert told.progress == 1_501_200
    assert told.steered
    assert told.fallback == NO_FAULTS


def test_moves_is_what_steps_change():
    assert sorted(parse_metrics(METRICS).moves) == [0.25, 77, 99, 1200, 1.5e6]


def test_faults_of_the_scheduler_are_told():
    text = b'headway:fallback_steps_total{engine="0"} 3.0\nheadway:stands_aside{engine="0"} 1.0\n'
    told = parse_metrics(text).fallback
    assert told == Fallback(3, aside=True)
    assert "stands aside" in str(told)
    assert str(NO_FAULTS) == ""


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_running{} NaN",
        b"vllm:num_requests_running 1e999",
        b"vllm:num_requests_running -.e",
        b"vllm:num_requests_running",
        b"vllm:num_requests_running_x 3",
        b" vllm:num_requests_running 3",
        b'vllm:cache_config_info{block_size="None"} 1.0',
    ],
)
def test_what_cannot_be_read_is_left_out(line):
    assert parse_metrics(line) == EngineMetrics()


@given(st.binary(max_size=300), st.sampled_from([b"", METRICS]))
def test_anything_is_read(junk, before):
    parse_metrics(before + junk)
    parse_metrics(junk + before)
