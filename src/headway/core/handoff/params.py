"""Handoff parameters as vLLM's NixlConnector makes and reads them."""

from collections.abc import Mapping


def valid_params(params: object) -> str | None:
    """Why `params` can't be sent to a decode engine, or None if they can.

    Checks what the connector (pull and push) reads from them. It trusts the router: without
    blocks its scheduler stops on an assertion or takes KV for loaded that isn't, without a
    flag or a name it silently recomputes the prompt, and without `tp_size` it never renews
    the lease.
    """
    if not isinstance(params, Mapping) or not params:
        return "kv_transfer_params are missing or empty"
    if params.get("do_remote_prefill") is not True or params.get("do_remote_decode"):
        return "do_remote_prefill must be true and do_remote_decode false"
    return _wrong_name(params) or _wrong_number(params) or _wrong_blocks(params)


def _wrong_name(params: Mapping[object, object]) -> str | None:
    for key in ("remote_engine_id", "remote_request_id", "remote_host"):
        value = params.get(key)
        if not isinstance(value, str) or not value:
            return f"{key} must be a string that isn't empty"
    return None


def _wrong_number(params: Mapping[object, object]) -> str | None:
    if not _is_number(params.get("remote_port"), 65_535):
        return "remote_port must be a whole number from 1 to 65535"
    if not _is_number(params.get("tp_size")):
        return "tp_size must be a whole number from 1"
    for key in ("dcp_size", "pp_size", "remote_num_tokens"):
        value = params.get(key)
        if value is not None and not _is_number(value):
            return f"{key} must be a whole number from 1"
    return None


def _wrong_blocks(params: Mapping[object, object]) -> str | None:
    """Block ids are lists, one for each group of layers; some may be empty, not all."""
    groups = params.get("remote_block_ids")
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        return "remote_block_ids must be a list of lists"
    if not any(groups):
        return "remote_block_ids names no block"
    for group in filter(None, groups):
        if set(map(type, group)) != {int} or min(group) < 0:
            return "remote_block_ids must hold whole numbers from 0"
    return None


def _is_number(value: object, most: int = 1 << 62) -> bool:
    return type(value) is int and 1 <= value <= most
