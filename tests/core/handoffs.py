"""Handoffs made for tests."""

from typing import Any

from headway.core.handoff import (
    Handoff,
)

LEASE_S, SAFE_AGE_S, RETRIES = 30.0, 20.0, 2


def made_params(**changes: Any) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[3, 4, 5]],
        "remote_engine_id": "e0",
        "remote_request_id": "cmpl-1",
        "remote_host": "10.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 40,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    } | changes


def made(**changes: Any) -> Handoff:
    return Handoff("r1", LEASE_S, SAFE_AGE_S, **{"retries": RETRIES} | changes)
