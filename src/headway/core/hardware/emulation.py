"""What is asked of an emulation: in the environment of an engine, as a name or as JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from headway.core.errors import SettingError
from headway.core.hardware.gpu import gpu_named

VARIABLE: Final = "HEADWAY_EMULATE"
"""`h100-sxm`, or `{"gpu": "h100-sxm", "slow": 4}`."""
SLOWEST: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """An engine on GPUs that aren't there. Raises SettingError.

    gpu: a name of `core.hardware.gpu`. slow: factor on every time, so that a machine can keep up.
    answer_tokens: where an answer ends whose length nobody asked for. faults: a file that tells
    how to misbehave (`faults`); empty: none.
    """

    gpu: str
    slow: float = 1.0
    answer_tokens: int = 256
    faults: str = ""

    def __post_init__(self) -> None:
        gpu_named(self.gpu)
        if not 0 < self.slow <= SLOWEST:
            raise SettingError("slow", f"is {self.slow:g}; use a factor up to {SLOWEST:g}")
        if self.answer_tokens < 1:
            raise SettingError("answer_tokens", f"is {self.answer_tokens}; use 1 or more")

    def __str__(self) -> str:
        """As `VARIABLE` has it."""
        given = {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}
        return self.gpu if len(given) == 1 else json.dumps(given)

    def said(self, gpus: int = 1) -> str:
        """What every figure is marked with."""
        count = f"{gpus} x " if gpus > 1 else ""
        slowed = f", {self.slow:g} times slower" if self.slow != 1 else ""
        return f"emulated {count}{gpu_named(self.gpu).device_name}{slowed}"


_DEFAULTS: Final = {field.name: field.default for field in fields(Emulation)}
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "gpu": (str,),
    "slow": (int, float),
    "answer_tokens": (int,),
    "faults": (str,),
}


def parse(text: str) -> Emulation:
    """What `VARIABLE` says. Raises SettingError."""
    if not text.lstrip().startswith("{"):
        return Emulation(gpu=text.strip())
    try:
        return from_table(json.loads(text))
    except ValueError as error:
        raise SettingError(VARIABLE, f"is not JSON: {error}") from error


def from_table(given: Mapping[str, Any]) -> Emulation:
    """From a table of settings. Raises SettingError."""
    for name, value in given.items():
        if name not in _KINDS:
            raise SettingError(name, f"unknown; use {', '.join(_KINDS)}")
        if not isinstance(value, _KINDS[name]) or isinstance(value, bool):
            raise SettingError(name, f"{value!r} is not {_SAID[name]}")
    if "gpu" not in given:
        raise SettingError("gpu", 'is missing; use one such as "h100-sxm"')
    if not math.isfinite(given.get("slow", 1.0)):
        raise SettingError("slow", f"is {given['slow']}; use a factor up to {SLOWEST:g}")
    return Emulation(**given)


_SAID: Final = {
    "gpu": "the name of a GPU",
    "slow": "a number",
    "answer_tokens": "a whole number",
    "faults": "a file's path",
}
