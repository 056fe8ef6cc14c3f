"""Parsed TOML to settings, strictly, along the annotations of the settings classes."""

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from headway.config.checks import BadValueError, Check, kind
from headway.config.lines import Path
from headway.config.problems import Problems, dotted

REQUIRED: Final = dataclasses.MISSING
UNSET: Final[tuple[object, ...]] = (None, (), {})
"""Defaults that stand for a setting that isn't set."""
ANY_NAME: Final = "NAME"
"""Where a section's name is its user's choice."""


class Setting(NamedTuple):
    """One field: how it is checked, what it means, its default or `REQUIRED`."""

    name: str
    check: Check
    meaning: str
    default: Any


class Named(NamedTuple):
    """Sections of one class, called as users like: `[router.clients.NAME]`. name: its check."""

    cls: type
    name: Check


class Form(NamedTuple):
    """What a settings class holds: its own settings, and the sections within, by name.

    named: those of which there may be any number, each with a name of its own.
    """

    settings: tuple[Setting, ...]
    sections: Mapping[str, type]
    named: Mapping[str, Named]


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is REQUIRED else field.default_factory()


@lru_cache
def form(cls: type) -> Form:
    """The form of a settings class; see `model`."""
    settings: list[Setting] = []
    sections: dict[str, type] = {}
    named: dict[str, Named] = {}
    hints = typing.get_type_hints(cls, include_extras=True)
    for each in dataclasses.fields(cls):
        hint = hints[each.name]
        if typing.get_origin(hint) is typing.Annotated:
            _, check, *meaning = typing.get_args(hint)
            if isinstance(check, Named):
                named[each.name] = check
            else:
                settings.append(Setting(each.name, check, meaning[0], _default(each)))
        else:  # a section, or one that may be None
            sections[each.name] = next(iter(typing.get_args(hint)), hint)
    return Form(tuple(settings), sections, named)


def all_settings(cls: type, at: Path) -> Iterator[tuple[Path, Setting]]:
    """All settings of a class and of the sections within, with their paths.

    Of sections with names of their own there is one, called ANY_NAME.
    """
    settings, sections, named = form(cls)
    for setting in settings:
        yield (*at, setting.name), setting
    for name, section in sections.items():
        yield from all_settings(section, (*at, name))
    for name, each in named.items():
        yield from all_settings(each.cls, (*at, name, ANY_NAME))


def section(cls: type, raw: object, at: Path, problems: Problems) -> Any:
    """An instance of the settings class from a TOML table.

    What is wrong is added to `problems` and replaced by its default; None where that can't be.
    """
    if not isinstance(raw, dict):
        problems.add(at, f"{kind(raw)} is not a table; use {header(at)}")
        return None
    settings, sections, named = form(cls)
    unknown(raw, [*(s.name for s in settings), *sections, *named], at, problems)
    values: dict[str, Any] = {}
    for setting in settings:
        if setting.name in raw:
            _read(setting, raw[setting.name], at, problems, values)
        elif setting.default is REQUIRED:
            problems.add((*at, setting.name), f"is missing; set it to {setting.meaning}")
    for name, inner in sections.items():
        if name in raw:
            values[name] = section(inner, raw[name], (*at, name), problems)
    for name, each in named.items():
        if name in raw:
            values[name] = _named(each, raw[name], (*at, name), problems)
    values = {name: value for name, value in values.items() if value is not None}
    complete = all(s.name in values or s.default is not REQUIRED for s in settings)
    return cls(**values) if complete else None


def _named(each: Named, raw: object, at: Path, problems: Problems) -> dict[str, Any]:
    """The sections that could be read, by name."""
    if not isinstance(raw, dict):
        problems.add(at, f"{kind(raw)} is not a table; use {header((*at, ANY_NAME))}")
        return {}
    found: dict[str, Any] = {}
    for name, inner in raw.items():
        try:
            each.name.read(name)
        except BadValueError as error:
            problems.add((*at, name), error.found[0][1])
        else:
            found[name] = section(each.cls, inner, (*at, name), problems)
    return {name: read for name, read in found.items() if read is not None}


def _read(
    setting: Setting, raw: object, at: Path, problems: Problems, values: dict[str, Any]
) -> None:
    try:
        values[setting.name] = setting.check.read(raw)
    except BadValueError as error:
        for path, problem in error.found:
            problems.add((*at, setting.name, *path), problem)


def unknown(raw: Mapping[str, object], known: list[str], at: Path, problems: Problems) -> None:
    """Add a problem for every key that isn't known."""
    for name in raw:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            problems.add((*at, name), f"unknown setting; {hint}known are: {', '.join(known)}")


def header(at: Path) -> str:
    """The section's title as a file has it: `[router.slo]`, `[[pool]]`, `[router.clients."*"]`."""
    names = dotted(tuple(part for part in at if not isinstance(part, int)))
    return f"[[{names}]]" if isinstance(at[-1], int) else f"[{names}]"
