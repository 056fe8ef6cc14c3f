"""The router's file: its settings as written, and where the started engines listen."""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from headway.config import Config
from headway.config.fleet import STARTING
from headway.config.keys import KeyHash
from headway.config.reading import form, header
from headway.fleet.plan.spec import Address


def text(config: Config, addresses: Mapping[str, Sequence[Address]]) -> str:
    """A file for `headway route`, of equal meaning.

    addresses: by pool, of its engines, at least one for each pool whose engines are started.

    What has its default is left out. Paths are absolute, so the file may stand anywhere.
    """
    lines = ["# Written by headway up; changes are lost."]
    lines += _section(config.router, ("router",))
    for pool in config.pools:
        engines = [str(engine) for engine in pool.engines]
        engines += [address.url for address in addresses[pool.name]] if not engines else []
        lines += ["", "[[pool]]", f"name = {_toml(pool.name)}", f"engines = {_toml(engines)}"]
        lines += _settings(pool, ("name", "engines", *STARTING))
        lines += _section(pool.tls, ("pool", "tls")) if pool.tls else []
    return "\n".join(lines) + "\n"


def _section(holder: object, at: tuple[str, ...]) -> Iterator[str]:
    settings = [*_settings(holder)]
    if settings:
        yield from ("", header(at), *settings)
    kind: type = type(holder)
    _, sections, named = form(kind)
    for name in sections:
        inner = getattr(holder, name)
        if inner is not None:
            yield from _section(inner, (*at, name))
    for name in named:
        for own, inner in getattr(holder, name).items():
            yield from ("", header((*at, name, own)), *_settings(inner))  # one without any counts


def _settings(holder: object, hidden: Sequence[str] = ()) -> Iterator[str]:
    """A line for every setting that isn't its default. hidden: names left out."""
    kind: type = type(holder)
    for setting in form(kind).settings:
        value = getattr(holder, setting.name)
        if setting.name not in hidden and value != setting.default:
            yield f"{setting.name} = {_toml(value)}"


def _toml(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, KeyHash):
        return _toml(f"{value.name}:{value.digest.hex()}")
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, pathlib.Path):
        return _toml(str(value.absolute()))
    # JSON's strings are TOML's, but for one control character.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
