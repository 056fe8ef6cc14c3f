"""Plain values as block-style YAML, which people read more easily than JSON.

Only what manifests are made of: dicts with string keys, lists, strings, whole numbers, true and
false, null. Text that YAML could take for something else is quoted; text of several lines is a
literal block where it can be one.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

Value = Mapping[str, "Value"] | Sequence["Value"] | str | int | bool | None

_PLAIN: Final = re.compile(r"-{0,2}[A-Za-z/_][A-Za-z0-9_/.@+=-]*(?::[A-Za-z0-9_/.@+=-]+)*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_UNPRINTABLE: Final = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f]")


def documents(values: Iterable[tuple[str, Mapping[str, Value]]]) -> str:
    """A stream of YAML documents, each after a comment line."""
    return "".join(f"---\n# {comment}\n{text(value)}" for comment, value in values)


def text(value: Mapping[str, Value]) -> str:
    """The mapping as YAML, with a line end. Raises TypeError for what isn't plain."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Value) -> list[str]:
    """The value's lines; the first one may follow `key: ` or `- `."""
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return [line for key, each in value.items() for line in _entry(key, each)] or ["{}"]
    if isinstance(value, Sequence):
        return [line for each in value for line in _under("- ", _lines(each))] or ["[]"]
    if value is None or isinstance(value, bool | int):
        return [json.dumps(value)]
    raise TypeError(f"{type(value).__name__} has no place in a manifest")


def _entry(key: str, value: Value) -> list[str]:
    name = key if _is_plain(key) else _quoted(key)
    lines = _lines(value)
    if isinstance(value, Mapping) and value:
        return [f"{name}:", *_indented(lines)]
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [f"{name}:", *lines]
    return _under(f"{name}: ", lines)


def _under(start: str, lines: list[str]) -> list[str]:
    return [start + lines[0], *_indented(lines[1:])]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _string(value: str) -> list[str]:
    if _is_plain(value):
        return [value]
    if "\n" in value and _is_literal(value):
        ends = value.endswith("\n")
        return ["|" if ends else "|-", *value.removesuffix("\n").split("\n")]
    return [_quoted(value)]


def _is_plain(value: str) -> bool:
    return bool(_PLAIN.fullmatch(value)) and value.lower() not in _WORDS


def _is_literal(value: str) -> bool:
    """Whether a literal block gives back the text: no line of blanks alone, none at either end."""
    lines = value.removesuffix("\n").split("\n")
    return (
        bool(lines[0])
        and not lines[0][0].isspace()
        and bool(lines[-1])
        and not any(line.isspace() for line in lines)
        and not _CONTROL.search(value)
        and not _UNPRINTABLE.search(value)
    )


def _quoted(value: str) -> str:
    """In double quotes, with JSON's escapes, and YAML's where JSON has none."""
    return _UNPRINTABLE.sub(
        lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False)
    )
