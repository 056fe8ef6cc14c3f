"""`headway route`: its flags, and what they start."""

import argparse
import contextlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from headway import config as settings
from headway.config.lines import Path
from headway.config.reading import ANY_NAME, REQUIRED, Setting
from headway.core.errors import HeadwayError, SettingError

DESCRIPTION: Final = """\
An OpenAI-compatible router in front of vLLM engines. Settings are in one file
(docs/router-config.md), which is read again when it changes or on SIGHUP; without a file, flags.
"""

EXAMPLES: Final = """\
examples:
  headway route --engine http://127.0.0.1:8100 --engine http://127.0.0.1:8101
  headway route --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8101
  headway route --config headway.toml
  headway route --check --config headway.toml
"""

_NUMBER: Final = re.compile(r"-?[0-9.]+(?:e[+-]?[0-9]+)?|nan|-?inf")
_PARTS: Final = ("httptools", "uvloop", "aiohappyeyeballs", "prometheus_client")
_ENGINES: Final = {
    "engine": "an engine that does everything",
    "prefill": "an engine that prefills",
    "decode": "an engine that decodes",
}


class MissingPartsError(HeadwayError):
    """What the router runs on isn't installed."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--config", metavar="FILE", help="the settings, TOML")
    parser.add_argument("--check", action="store_true", help="say what the settings mean, and end")
    for name, what in _ENGINES.items():
        parser.add_argument(
            f"--{name}", action="append", default=[], metavar="URL", help=f"{what}; may be repeated"
        )
    group = parser.add_argument_group("settings, where there is no file")
    for path, setting in _settings():
        group.add_argument(
            settings.flag_of(path),
            dest=_dest(path),
            action="append" if _kind(setting) == "array" else "store",
            metavar="X",
            help=_help(setting),
        )


def route(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Run the router, or check its settings; the exit status. Raises HeadwayError."""
    config = _config(arguments)
    if arguments.check:
        print(settings.explain(config), end="")  # noqa: T201  what was asked for
        return 0
    for part in _PARTS:
        if importlib.util.find_spec(part) is None:
            raise MissingPartsError(f"{part} isn't installed; pip install 'headway[router]'")
    from headway.router.main import run  # noqa: PLC0415  only now is it known to be complete

    for warning in settings.warnings(config):
        say(f"warning: {warning}")
    if config.router.clients:
        for line in settings.told_clients(config.router):
            say(line)
    read = (lambda: _config(arguments)) if arguments.config else None
    return run(config, read, say)


def _config(arguments: argparse.Namespace) -> settings.Config:
    given = {
        path: _value(text, setting)
        for path, setting in _settings()
        if (text := getattr(arguments, _dest(path))) is not None
    }
    urls = {name: getattr(arguments, name) for name in _ENGINES}
    if arguments.config:
        flags = [f"--{name}" for name in urls if urls[name]] + [*map(settings.flag_of, given)]
        if flags:
            raise SettingError(
                flags[0], "and --config are given; leave one out, the file has all settings"
            )
        return settings.load(arguments.config)
    if not any(urls.values()):
        raise SettingError("--config", "no engine is named; give FILE, or --engine URL")
    return settings.from_flags(
        engines=urls["engine"],
        prefill=urls["prefill"],
        decode=urls["decode"],
        router=_nested(given),
    )


def _settings() -> Iterator[tuple[Path, Setting]]:
    """Those that there is a flag for: sections with names of their own need a file."""
    every = settings.all_settings(settings.Router, ("router",))
    return (each for each in every if ANY_NAME not in each[0])


def _dest(path: Path) -> str:
    return ".".join(map(str, path))


def _kind(setting: Setting) -> object:
    return setting.check.schema().get("type")


def _help(setting: Setting) -> str:
    default = setting.default
    shown = "" if default in {None, REQUIRED, ()} else f" (default: {default})"
    return (setting.meaning + shown).replace("True", "true").replace("%", "%%")


def _value(text: Any, setting: Setting) -> Any:
    """What a file would hold for it; text that can't be read is left for the check to refuse."""
    kind = _kind(setting)
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    read = {"integer": int, "number": float}.get(str(kind))
    if read is None or not _NUMBER.fullmatch(text):  # int() reads 1_0 too, and other digits
        return text
    with contextlib.suppress(ValueError):
        return read(text)
    return text


def _nested(given: dict[Path, Any]) -> dict[str, Any]:
    """As the file's [router] would have it."""
    router: dict[str, Any] = {}
    for path, value in given.items():
        table = router
        for name in path[1:-1]:
            table = table.setdefault(str(name), {})
        table[str(path[-1])] = value
    return router
