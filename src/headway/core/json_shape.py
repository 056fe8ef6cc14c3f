"""Frozen dataclasses as JSON: written, read back, and described by a schema.

A field may be a bool, int, float, str, a Literal of strings, another such dataclass, `X | None`,
`tuple[X, ...]` or `Mapping[str, X]`. Whoever reads takes no notice of keys it doesn't know, so that
a newer writer may add some; a field without a default has to be there.
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from headway.core.errors import HeadwayError

T = TypeVar("T")
_PLAIN: Final[Mapping[Any, tuple[str, tuple[type, ...]]]] = {
    bool: ("boolean", (bool,)),
    int: ("integer", (int,)),
    float: ("number", (int, float)),
    str: ("string", (str,)),
}
"""What plain types are called in JSON, and what stands for them in Python."""


class ShapeError(HeadwayError, ValueError):
    """JSON that isn't what it should be; says where and what would be right."""


def to_json(value: Any) -> Any:
    """A dataclass, with all in it, as `json.dumps` takes it."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(each) for each in value]
    return value


def from_json(shape: type[T], value: object, at: str = "") -> T:
    """A `shape` from what `json.loads` gave. Raises ShapeError.

    at: where it was found, for errors.
    """
    known: Any = shape
    hints = _hints(known)
    if not isinstance(value, Mapping):
        raise _wrong(at, value, f"an object with {', '.join(hints)}")
    given = {}
    for field in dataclasses.fields(known):
        where = f"{at}.{field.name}" if at else field.name
        if field.name in value:
            given[field.name] = _read(hints[field.name], value[field.name], where)
        elif not _has_default(field):
            raise ShapeError(f"{where} is missing")
    return shape(**given)


def schema(shape: type) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of what `to_json` makes of a `shape`."""
    found: dict[str, Any] = {}
    top = _described(shape, found)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": shape.__name__,
        **top,
        "$defs": dict(sorted(found.items())),
    }


@cache
def _hints(shape: Any) -> dict[str, Any]:
    return get_type_hints(shape)


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _wrong(at: str, value: object, right: str) -> ShapeError:
    shown = repr(value)
    short = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return ShapeError(f"{at or 'the whole'} is {short}; it should be {right}")


def _read(hint: Any, value: object, at: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        [some] = [each for each in inner if each is not type(None)]
        return None if value is None else _read(some, value, at)
    if origin is Literal:
        if value not in inner:
            raise _wrong(at, value, f"one of {', '.join(inner)}")
        return value
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _wrong(at, value, "a list")
        return tuple(_read(inner[0], each, f"{at}[{i}]") for i, each in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(at, value, "an object")
        return {str(key): _read(inner[1], each, f"{at}.{key}") for key, each in value.items()}
    if hint not in _PLAIN:
        return from_json(hint, value, at)
    name, kinds = _PLAIN[hint]
    if not isinstance(value, kinds) or (isinstance(value, bool) and hint is not bool):
        raise _wrong(at, value, f"of type {name}")
    return hint(value)


def _described(hint: Any, found: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        some = [_described(each, found) for each in inner if each is not type(None)]
        return {"anyOf": [*some, {"type": "null"}]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple:
        return {"type": "array", "items": _described(inner[0], found)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _described(inner[1], found)}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint][0]}
    if hint.__name__ not in found:
        fields = dataclasses.fields(hint)
        found[hint.__name__] = {
            "description": " ".join((hint.__doc__ or "").split()),
            "type": "object",
            "properties": {f.name: _described(_hints(hint)[f.name], found) for f in fields},
            "required": [f.name for f in fields],
        }
    return {"$ref": f"#/$defs/{hint.__name__}"}
