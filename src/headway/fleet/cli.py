"""The fleet's subcommands: their flags, and what they call. What they run on is imported late."""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from headway.core.errors import SettingError
from headway.core.routing.strategies import MEANINGS, SPLIT_STRATEGY, STRATEGY_BY_NAME

FILE: Final = "headway.toml"
NAME: Final = "default"
_FILE_HELP: Final = (
    f"the fleet and its router (default: ./{FILE} if it exists, else what suits this machine)"
)
_MOST_LINES: Final = 1_000_000
_MOST_CPUS: Final = 10_000
_SHOWN: Final = 60
_UP: Final = f"""\
Starts a fleet: engines, a router in front of them, and a supervisor that keeps it so, until Ctrl-C
or `headway down`. Without FILE and without ./{FILE}, the bundled model with what suits this
machine. `headway init` writes a file to start from; docs/fleet.md tells what can be in it.
"""
_EXAMPLES: Final = f"""\
examples:
  headway up
  headway init --strategy {SPLIT_STRATEGY} && headway up --dry-run
  headway status --watch
  headway scale decode=2
"""

Say = Callable[[str], None]


def add_commands(commands: Any) -> None:
    """Declare them. commands: what `add_subparsers` made."""
    for name, (about, add) in _COMMANDS.items():
        parser = commands.add_parser(
            name,
            help=about,
            prog=f"headway {name}",
            description=_UP if name == "up" else f"{about[0].upper()}{about[1:]}.",
            epilog=_EXAMPLES if name == "up" else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add(parser)


def names() -> tuple[str, ...]:
    """The subcommands."""
    return tuple(_COMMANDS)


def run(arguments: argparse.Namespace, rest: list[str], say: Say) -> int:
    """Run one; the exit status. say: told what goes on, line by line. Raises HeadwayError."""
    if rest:
        raise SettingError(rest[0], f"unknown; see headway {arguments.command} --help")
    try:
        return _RUN[arguments.command](arguments, say)
    except BrokenPipeError:  # whoever read has seen enough, as in `headway logs a-0 | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _add_up(parser: argparse.ArgumentParser) -> None:
    _add_file(parser)
    _add_name(parser, f"of the fleet (default: as in FILE, else {NAME})")
    parser.add_argument(
        "--model", help="without FILE: a directory or a hub name, instead of the bundled model"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be run, and start nothing"
    )
    _add_json(parser, "with --dry-run: for programs")


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", default=FILE, help=f"default: {FILE}")
    parser.add_argument(
        "--strategy",
        choices=tuple(STRATEGY_BY_NAME),
        help=f"how requests are spread (default: {SPLIT_STRATEGY} where there are two devices); "
        + MEANINGS,
    )
    parser.add_argument("--model", help="a directory or a hub name (default: the bundled model)")
    parser.add_argument("--force", action="store_true", help="also over a file that exists")


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="show it anew every two seconds")
    _add_json(how)


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="NAME", help="an engine, or router")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is added")
    parser.add_argument(
        "-n",
        "--lines",
        type=_whole(0, _MOST_LINES),
        default=50,
        metavar="N",
        help="from the end (default: 50)",
    )
    _add_json(parser, "a line of JSON for each: the router's are its decisions, others have `text`")
    _add_name(parser)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="NAME", help="as `headway status` shows it")
    _add_name(parser)


def _add_scale(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("size", metavar="POOL=N", type=_size, help="for example decode=2")
    _add_name(parser)


def _add_restart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL")
    _add_name(parser)


def _add_down(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="don't wait for running requests")
    _add_name(parser)


def _add_render(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", choices=("kubernetes",), help="what for")
    _add_file(parser)
    parser.add_argument("--image", help="with vLLM and headway in it")
    parser.add_argument("--namespace", metavar="N", help="default: that of whoever applies it")
    parser.add_argument(
        "--cpus",
        type=_whole(1, _MOST_CPUS),
        metavar="N",
        help="cores of each engine, to run them on CPUs",
    )


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=f"to check, too (default: ./{FILE} if it exists)"
    )
    _add_json(parser)
    _add_name(parser)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help=_FILE_HELP)


def _add_json(
    parser: "argparse.ArgumentParser | argparse._MutuallyExclusiveGroup",
    about: str = "for programs",
) -> None:
    parser.add_argument("--json", action="store_true", help=f"{about} (docs/scripts.md)")


def _add_name(parser: argparse.ArgumentParser, about: str = "of the fleet") -> None:
    parser.add_argument("--name", default=None, help=about)


def _whole(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number from `least` to `most`."""

    def read(text: str) -> int:
        # The digits are counted first: Python doesn't read thousands of them.
        digits = text.isascii() and text.isdecimal() and len(text.lstrip("0")) <= len(str(most))
        if not (digits and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(
                f"{_short(text)} is not a whole number from {least} to {most}"
            )
        return int(text)

    return read


def _size(text: str) -> tuple[str, int]:
    from headway.config.model import MOST_REPLICAS  # noqa: PLC0415  only `scale` needs it

    pool, equals, count = text.rpartition("=")
    if not (pool and equals):
        said = f"{_short(text)} is not POOL=N; write for example decode=2"
        raise argparse.ArgumentTypeError(said)
    return pool, _whole(1, MOST_REPLICAS)(count)


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _up(arguments: argparse.Namespace, say: Say) -> int:
    from headway.fleet import up  # noqa: PLC0415  with all that a fleet needs

    if arguments.json and not arguments.dry_run:
        raise SettingError("--json", "is for --dry-run; see headway status --json for what runs")
    asked = arguments.file or not arguments.model
    wish = up.UpWish(_file(arguments.file) if asked else None, arguments.model, arguments.name)
    return up.up(wish, say, dry_run=arguments.dry_run, json=arguments.json)


def _init(arguments: argparse.Namespace, say: Say) -> int:
    from headway.fleet import up  # noqa: PLC0415

    return up.init(
        Path(arguments.file),
        say,
        strategy=arguments.strategy,
        model=arguments.model,
        force=arguments.force,
    )


def _operate(arguments: argparse.Namespace, say: Say) -> int:
    """What asks the supervisor of a fleet that runs."""
    from headway.fleet.operate import commands  # noqa: PLC0415

    name, asked = arguments.name or NAME, arguments.command
    if asked == "status":
        return commands.status(name, watch=arguments.watch, json=arguments.json)
    if asked == "logs":
        return commands.logs(
            name, arguments.engine, arguments.lines, follow=arguments.follow, json=arguments.json
        )
    if asked in {"drain", "undrain"}:
        return commands.drain(name, arguments.engine, say, draining=asked == "drain")
    if asked == "scale":
        pool, count = arguments.size
        return commands.scale(name, pool, count, say)
    if asked == "restart":
        return commands.restart(name, arguments.pool, say)
    return _end_or_reload(arguments, name, say)


def _end_or_reload(arguments: argparse.Namespace, name: str, say: Say) -> int:
    from headway.fleet.operate import commands  # noqa: PLC0415

    if arguments.command == "reload":
        return commands.reload(name, say)
    return commands.down(name, say, force=arguments.force)


def _render(arguments: argparse.Namespace, say: Say) -> int:
    from headway import config as settings  # noqa: PLC0415
    from headway.fleet.kubernetes import kubernetes  # noqa: PLC0415
    from headway.fleet.plan import machine, plan  # noqa: PLC0415
    from headway.models.hub import asked_files  # noqa: PLC0415

    given = {
        key: value
        for key in ("image", "namespace", "cpus")
        if (value := getattr(arguments, key)) is not None
    }
    config = plan.load(_file(arguments.file), machine.detect())
    for warning in settings.warnings(config):
        say(f"warning: {warning}")
    for pool in config.pools:
        if pool.model and not pool.kubernetes.memory_gib:
            asked_files(pool.model, {**os.environ, **pool.env}, say)
    print(kubernetes.render(config, kubernetes.RenderOptions(**given)), end="")  # noqa: T201
    return 0


def _doctor(arguments: argparse.Namespace, _say: Say) -> int:
    from headway.fleet.doctor import doctor  # noqa: PLC0415

    def write(text: str) -> None:
        print(text, flush=True)  # noqa: T201  what was asked for

    path = _file(arguments.file)
    return doctor.run(str(path) if path else None, write, name=arguments.name, json=arguments.json)


def _file(given: str | None) -> Path | None:
    """The file that is meant; None: there is none. Raises SettingError where one is missing."""
    path = Path(given or FILE)
    if path.exists():
        return path
    if given:
        raise SettingError(given, f"no such file; `headway init {given}` writes one")
    return None


_COMMANDS: Final[Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "up": ("start a fleet: engines, a router, a supervisor", _add_up),
    "init": ("write a commented file for this machine", _add_init),
    "status": ("show a running fleet: engines, load, goodput", _add_status),
    "logs": ("show what an engine, or the router, has said", _add_logs),
    "drain": ("send no new requests to an engine", _add_engine),
    "undrain": ("send requests to an engine again", _add_engine),
    "scale": ("change how many engines a pool has", _add_scale),
    "restart": ("restart a pool's engines, one after the other", _add_restart),
    "reload": ("have a running fleet read its file again", _add_name),
    "down": ("stop a fleet, once running requests have ended", _add_down),
    "render": ("write what runs the fleet elsewhere", _add_render),
    "doctor": ("check the installation, the file, and the fleet if it runs", _add_doctor),
}
_RUN: Final[Mapping[str, Callable[[argparse.Namespace, Say], int]]] = {
    **dict.fromkeys(_COMMANDS, _operate),
    "up": _up,
    "init": _init,
    "render": _render,
    "doctor": _doctor,
}
