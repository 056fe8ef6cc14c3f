"""Real engines with the KV connector, for benchmarks of disaggregation."""

import json
from typing import Final

from headway.bench.engines.arms import SLO
from headway.bench.engines.engine import ArmEngine, BenchEngine, engine_environment, serve_command
from headway.bench.engines.processes import free_ports
from headway.bench.report.document import ProgressLines

CONNECTOR: Final = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_both",
    "kv_buffer_device": "cpu",
}
WITH_CONNECTOR: Final = ("--kv-transfer-config", json.dumps(CONNECTOR))


def engine(
    name: str, core: int, flags: tuple[str, ...], model: str | None, progress: ProgressLines
) -> BenchEngine:
    """An engine with a side channel port of its own, not yet started."""
    spec = ArmEngine(name, SLO, flags, model)
    port, side_port = free_ports(2)
    environment = engine_environment(core, spec.kvcache_gib)
    environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(side_port)
    return BenchEngine(
        name, serve_command(spec, port), environment, port=port, core=core, progress=progress
    )
