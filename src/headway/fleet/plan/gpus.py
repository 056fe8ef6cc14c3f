"""The GPUs of this machine, by NVIDIA's own bindings (nvidia-ml-py), and which of them may be used.

A GPU in MIG mode can't run anything itself: its MIG devices stand for it. They are numbered after
the GPUs, in the order of `nvidia-smi -L`, since numbers are what a file's `devices` has.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_LIBRARY: Final = "pynvml"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """A GPU, or a MIG device of one.

    number: what a file's `devices` calls it. uuid: NVIDIA's name for it. memory_bytes,
    free_bytes: 0 where they aren't known. parent: of a MIG device, the index of its GPU.
    """

    number: int
    uuid: str
    name: str
    memory_bytes: int = 0
    free_bytes: int = 0
    parent: int | None = None

    @property
    def visible_as(self) -> str:
        """What CUDA_VISIBLE_DEVICES calls it, with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
        return str(self.number) if self.parent is None else self.uuid


class FoundGpus(NamedTuple):
    """devices: those that can run something. problem: why there are none, or why one is missing;
    empty if there is nothing to say.
    """

    devices: tuple[GpuDevice, ...]
    problem: str = ""


def found_gpus(library: Any = None) -> FoundGpus:
    """What NVIDIA's driver tells. library: pynvml, or what does as it does."""
    try:
        nvml = library or importlib.import_module(_LIBRARY)
    except ImportError:
        return FoundGpus((), "nvidia-ml-py isn't installed, so GPUs can't be seen")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return FoundGpus((), f"NVIDIA's driver doesn't answer: {error}")
    try:
        return _listed(nvml)
    except nvml.NVMLError as error:
        return FoundGpus((), f"NVIDIA's driver doesn't tell its GPUs: {error}")
    finally:
        nvml.nvmlShutdown()


def visible(devices: Sequence[GpuDevice], words: str | None) -> tuple[GpuDevice, ...]:
    """Those that CUDA would show.

    words: CUDA_VISIBLE_DEVICES: indices of GPUs, or (beginnings of) UUIDs, of MIG devices too. What
    follows one that isn't there doesn't count, and a GPU in MIG mode stands for its first MIG
    device, as CUDA has it. None: all.
    """
    if words is None:
        return tuple(devices)
    chosen: list[GpuDevice] = []
    for word in filter(None, (part.strip() for part in words.split(","))):
        device = _named(devices, word)
        if device is None or device in chosen:
            break
        chosen.append(device)
    return tuple(chosen)


def _named(devices: Sequence[GpuDevice], word: str) -> GpuDevice | None:
    if word.isascii() and word.isdecimal():
        of_gpu = (d for d in devices if int(word) == (d.number if d.parent is None else d.parent))
        return next(of_gpu, None)
    matches = [device for device in devices if device.uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None


def _listed(nvml: Any) -> FoundGpus:
    count = nvml.nvmlDeviceGetCount()
    whole: list[GpuDevice] = []
    parts: list[GpuDevice] = []
    problems: list[str] = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if not _is_divided(nvml, handle):
                whole.append(_device(nvml, handle, index))
                continue
            mine = list(_parts_of(nvml, handle, index, count + len(parts)))
        except nvml.NVMLError as error:
            problems.append(f"GPU {index} can't be used: {error}")
            continue
        if not mine:
            problems.append(f"GPU {index} is in MIG mode and has no MIG device (nvidia-smi mig)")
        parts += mine
    return FoundGpus((*whole, *parts), "; ".join(problems))


def _is_divided(nvml: Any, handle: Any) -> bool:
    """Whether a GPU is in MIG mode."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False  # one that has no such mode
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _parts_of(nvml: Any, handle: Any, parent: int, first: int) -> Iterator[GpuDevice]:
    """The MIG devices of a GPU. first: the number of the first."""
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError:
            continue  # places needn't be taken
        yield _device(nvml, part, first, parent)
        first += 1


def _device(nvml: Any, handle: Any, number: int, parent: int | None = None) -> GpuDevice:
    memory_bytes, free_bytes = _memory(nvml, handle)
    return GpuDevice(
        number=number,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory_bytes,
        free_bytes=free_bytes,
        parent=parent,
    )


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """All that CUDA can have of its memory, and what is free now; 0 where it isn't known."""
    try:
        now = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return now.total - now.reserved, now.free
    except nvml.NVMLError:
        pass  # an older driver, which counts what it reserves as used
    try:
        now = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return 0, 0  # one that shares the machine's memory
    return now.total, now.free


def _text(said: str | bytes) -> str:
    """Older bindings answer in bytes."""
    return said.decode() if isinstance(said, bytes) else said
