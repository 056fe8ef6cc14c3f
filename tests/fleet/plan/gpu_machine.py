"""Machines with GPUs, and models that are only configurations, for tests of what fits."""

import json

from tests.testing.nvidia import Card, Nvml

from headway.fleet.plan.gpus import found_gpus
from headway.fleet.plan.spec import Machine

H100 = Card("GPU-0")


def machine_of(*cards):
    """A machine with these GPUs."""
    devices, problem = found_gpus(Nvml(*cards))
    return Machine(
        cores=(0, 1),
        gpus=tuple(device.number for device in devices),
        memory_gib=512.0,
        cpu=False,
        gpu_by_number={device.number: device for device in devices},
        gpu_problem=problem,
    )


def h100s(count):
    return machine_of(*(Card(f"GPU-{index}") for index in range(count)))


def model_in(folder, config, *, size_bytes=None):
    """A model's directory: its configuration, and weights that are an index alone."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if size_bytes:
        index = {"metadata": {"total_size": size_bytes}, "weight_map": {}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)
