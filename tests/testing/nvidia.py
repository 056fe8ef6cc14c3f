# ruff: noqa: N802, N815  names are pynvml's
"""A machine's GPUs as NVIDIA's bindings tell them: pynvml's functions of a driver that isn't there.

Behaviour as documented: absent MIG devices are NVMLError_NotFound, a GPU without a mode for it
NVMLError_NotSupported, and memory's second version needs a driver that has it.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml's: the base of all of its errors."""


@dataclass(frozen=True)
class Part:
    """A MIG device."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    gib: float = 39.5


@dataclass(frozen=True)
class Card:
    """A GPU. parts: its MIG devices by place, None where a place isn't taken; None: no MIG mode.

    lost: it doesn't answer any more. old: its driver knows memory's first version only. shared: it
    has no memory of its own.
    """

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    gib: float = 79.65
    reserved_gib: float = 0.54
    used_gib: float = 0.0
    parts: tuple[Part | None, ...] | None = None
    lost: bool = False
    old: bool = False
    shared: bool = False


class Nvml:
    """pynvml, with these GPUs. fails: what nvmlInit raises."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *cards: Card, fails: str | None = None, in_bytes: bool = False) -> None:
        self._cards = cards
        self._fails = fails
        self._in_bytes = in_bytes
        self.open = 0

    def nvmlInit(self) -> None:
        if self._fails:
            raise NVMLError(self._fails)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        assert self.open
        return len(self._cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        if self._cards[index].lost:
            raise NVMLError("GPU is lost")
        return self._cards[index]

    def nvmlDeviceGetUUID(self, handle: Card | Part) -> str | bytes:
        return handle.uuid.encode() if self._in_bytes else handle.uuid

    def nvmlDeviceGetName(self, handle: Card | Part) -> str | bytes:
        return handle.name.encode() if self._in_bytes else handle.name

    def nvmlDeviceGetMigMode(self, handle: Card) -> list[int]:
        if handle.parts is None:
            raise NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Card) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Card, index: int) -> Part:
        assert handle.parts is not None
        part = handle.parts[index] if index < len(handle.parts) else None
        if part is None:
            raise NVMLError("Not Found")
        return part

    def nvmlDeviceGetMemoryInfo(self, handle: Card | Part, version: int | None = None) -> Any:
        total = round(handle.gib * GIB)
        if isinstance(handle, Part):
            return SimpleNamespace(total=total, reserved=0, used=0, free=total)
        if handle.shared or (handle.old and version):
            raise NVMLError("Not Supported" if handle.shared else "Function Not Found")
        reserved = round(handle.reserved_gib * GIB)
        used = round(handle.used_gib * GIB)
        free = total - reserved - used
        if version is None:
            return SimpleNamespace(total=total, used=used + reserved, free=free)
        return SimpleNamespace(total=total, reserved=reserved, used=used, free=free)
