"""vLLM flags as a file has them: what is set, where, and the KV connector among them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

KV_TRANSFER: Final = "--kv-transfer-config"
EXECUTOR: Final = "--distributed-executor-backend"
_SHORT: Final[Mapping[str, str]] = {
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "-ac": "--attention-config",
}


class Given(NamedTuple):
    """A flag's value, and its place in the list; without a value it is "true"."""

    value: str
    place: int


def given(flags: Sequence[str]) -> dict[str, Given]:
    """Flags by name. `--a_b` counts as `--a-b`, and a value may follow or stand behind "="."""
    found: dict[str, Given] = {}
    for place, word in enumerate(flags):
        if not word.startswith("-"):
            continue
        name, equals, value = word.partition("=")
        if not equals:
            following = flags[place + 1] if place + 1 < len(flags) else "-"
            value = "true" if following.startswith("-") else following
        if name.startswith("--"):
            name = name.replace("_", "-")
        found[_SHORT.get(name, name)] = Given(value, place)
    return found


class Connector(NamedTuple):
    """A KV connector as flags have it. problem: why they can't be read, else None."""

    name: str
    role: str
    place: int
    problem: str | None = None


def connector(flags: Sequence[str]) -> Connector | None:
    """The KV connector that the flags set; None if they set none."""
    values: dict[str, Any] = {}
    place = None
    for name, flag in given(flags).items():
        if name == KV_TRANSFER:
            try:
                parsed = json.loads(flag.value)
            except ValueError as error:
                return Connector("", "", flag.place, f"is not JSON: {error}")
            if not isinstance(parsed, dict):
                return Connector("", "", flag.place, "is not a JSON object")
            values |= parsed
        elif name.startswith(f"{KV_TRANSFER}."):
            # vLLM's other way to write it: one flag a key.
            values[name.removeprefix(f"{KV_TRANSFER}.").replace("-", "_")] = flag.value
        else:
            continue
        place = flag.place
    if place is None:
        return None
    return Connector(str(values.get("kv_connector", "")), str(values.get("kv_role", "")), place)
