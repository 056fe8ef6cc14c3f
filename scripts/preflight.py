"""Can this machine run headway on its CPU? One clear line for each thing that is missing.

Standard library only, and nothing that Python 3.7 can't read: it must be able to say that Python is
old.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

INSTALL_BYTES = {"cpu": 6_000_000_000, "dev": 500_000_000, "ray": 500_000_000}
"""Free disk space that an installation needs, by kind."""
MIN_PYTHON = (3, 11)
MIN_GLIBC = (2, 28)


class Machine(NamedTuple):
    """What matters about a machine.

    system, arch: as `platform.system()` and `platform.machine()` say.
    glibc: None for another C library.
    cpu_flags: those of /proc/cpuinfo, empty where unknown.
    has_venv: whether `python -m venv` works.
    compiler: path of a C++ compiler.
    free_bytes: on the disk of the virtual environment.
    """

    system: str
    arch: str
    python: tuple[int, ...]
    glibc: tuple[int, ...] | None
    cpu_flags: set[str]
    has_venv: bool
    compiler: str | None
    free_bytes: int


def this_machine(directory: Path) -> Machine:
    """The machine that runs this, with the free space of `directory`'s disk."""
    libc, version = platform.libc_ver()
    return Machine(
        system=platform.system(),
        arch=platform.machine(),
        python=tuple(sys.version_info[:3]),
        glibc=_numbers(version) if libc == "glibc" else None,
        cpu_flags=_cpu_flags(),
        # Debian ships Python without ensurepip, and venv fails then.
        has_venv=all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        compiler=shutil.which("g++") or shutil.which("c++") or shutil.which("clang++"),
        free_bytes=shutil.disk_usage(directory).free,
    )


def problems(machine: Machine, kind: str) -> list[str]:
    """What keeps `machine` from an installation of `kind` ("cpu", "dev" or "ray"), a line each."""
    found = []
    if machine.python < MIN_PYTHON:
        found.append(
            f"Python {_dotted(machine.python)} is too old; install Python 3.11 or newer and say "
            "where it is, for example: make serve PYTHON=/usr/bin/python3.11"
        )
    elif not machine.has_venv:
        version = _dotted(machine.python[:2])
        found.append(
            "this Python has no venv module; install it (on Debian and Ubuntu: "
            f"apt install python{version}-venv)"
        )
    needed = INSTALL_BYTES[kind]
    if machine.free_bytes < needed:
        found.append(
            f"{machine.free_bytes / 1e9:.1f} GB of disk are free here and {needed / 1e9:.1f} GB "
            "are needed; free some space, or clone headway on another disk"
        )
    if kind == "cpu":
        found += _platform_problems(machine)
    return found


def notes(machine: Machine, kind: str) -> list[str]:
    """What works less well on `machine`, a line each."""
    if kind == "cpu" and machine.compiler is None:
        line = (
            "no C++ compiler found: engines run, but only with --enforce-eager (the default of "
            "make serve); install g++ for compiled ones"
        )
        return [line]
    return []


def _platform_problems(machine: Machine) -> list[str]:
    if machine.system != "Linux" or machine.arch not in {"x86_64", "aarch64"}:
        line = (
            "vLLM's CPU build runs on Linux on x86-64 or aarch64 and this is "
            f"{machine.system} on {machine.arch}; use such a machine, a container or WSL 2"
        )
        return [line]
    if machine.glibc is None or machine.glibc < MIN_GLIBC:
        has = _dotted(machine.glibc) if machine.glibc else "another C library"
        line = (
            f"vLLM's CPU build needs glibc {_dotted(MIN_GLIBC)} or newer and this system has "
            f"{has}; use a newer distribution"
        )
        return [line]
    if machine.arch == "x86_64" and machine.cpu_flags and "avx2" not in machine.cpu_flags:
        return ["vLLM's CPU build needs a processor with AVX2 and this one has none"]
    return []


def _cpu_flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("flags"):
                return set(line.split(":", 1)[1].split())
    return set()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
