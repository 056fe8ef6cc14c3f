"""A KV connector without workers: some requests' KV arrives later, when the test says so."""

from collections import Counter
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

NAME = "HeadwayTestConnector"


class LateKV(KVConnectorBase_V1):
    """Loads all of a prompt marked `do_remote_prefill`, `stored` tokens of one with that
    parameter, nothing of others; asynchronously, or within the step where it says `at_once`.

    It doesn't know yet what it has of a prompt marked `undecided`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loading: list[str] = []
        self.asked: Counter[str] = Counter()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        self.asked[request.request_id] += 1
        parameters = request.kv_transfer_params or {}
        known = 0
        if parameters.get("undecided"):
            return None, False
        if parameters.get("do_remote_prefill"):
            known = request.num_prompt_tokens - 1
        elif "stored" in parameters:
            known = min(parameters["stored"], request.num_prompt_tokens - 1)
        new = max(0, known - num_computed_tokens)
        return new, new > 0 and not parameters.get("at_once")

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        parameters = request.kv_transfer_params or {}
        if num_external_tokens and not parameters.get("at_once"):
            self.loading.append(request.request_id)
            request.kv_transfer_params = {}

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context, **kwargs):
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name):
        raise NotImplementedError

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        raise NotImplementedError

    def wait_for_save(self):
        raise NotImplementedError


KVConnectorFactory.register_connector(NAME, __name__, LateKV.__name__)
# The module was loaded by path; the factory must not import it by name.
KVConnectorFactory._registry[NAME] = lambda: LateKV


def transfer() -> KVTransferConfig:
    """What makes an engine use the connector."""
    return KVTransferConfig(kv_connector=NAME, kv_role="kv_both")
