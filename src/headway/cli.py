"""The `headway` command."""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from headway import completion, masking
from headway.core.batching import settings
from headway.core.errors import EXIT_STATUSES, INTERRUPTED, WRONG, HeadwayError, SettingError
from headway.core.hardware import emulation
from headway.core.hardware.gpu import GPU_BY_NAME
from headway.engine.start import command, launch
from headway.fleet import cli as fleet
from headway.models import bundled, known
from headway.router import command as route

_SERVE: Final = f"""\
Starts one vLLM server with headway's scheduler in it, on 127.0.0.1:8000 unless told otherwise.

MODEL is a directory or a Hugging Face name. Without it a small bundled model is served
({bundled.NAME}, prepared on first use), with settings that suit a CPU: --dtype float32 (bfloat16
makes its answers worse), --enforce-eager (up in half the time; --no-enforce-eager compiles and
decodes about a quarter faster), --max-num-batched-tokens 512, VLLM_CPU_KVCACHE_SPACE=2. On a single
core the engine is bound to it. Flags and environment variables of yours win.

With --emulate it runs on GPUs that aren't there, for rehearsals: vLLM as it is, at their speed, and
what it writes are words without meaning (docs/emulation.md). MODEL then needs no weights, and may
be one of {", ".join(known.CONFIG_BY_NAME)}.

Every flag not listed here goes to vLLM as it is: --port 8001, --max-model-len 4096, … All of them:
python -m vllm.entrypoints.openai.api_server --help=all
"""

_POLICIES: Final = "\n".join(
    [
        "policies:",
        *(
            f"  {name:11} {preset.meaning}"
            + (" (the default)" if name == settings.DEFAULT_POLICY else "")
            for name, preset in settings.PRESETS.items()
        ),
        f"  {settings.STOCK:11} vLLM's own scheduler, for comparison",
        "",
    ]
)

_EXAMPLES: Final = """\
examples:
  headway serve
  headway serve --policy parallel --max-long-partial-prefills 2 --port 8001
  headway serve llama-3.1-70b --emulate h100-sxm --tensor-parallel-size 4
  headway serve Qwen/Qwen3-8B --ttft-slo-s 2 --tpot-slo-s 0.05 --tensor-parallel-size 2
"""

_ENDINGS: Final = "\n".join(
    [
        "exit status:",
        *(f"  {status:<4} {meaning}" for status, meaning in EXIT_STATUSES.items()),
        "  serve ends as an engine that ended by itself did",
    ]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status, one of EXIT_STATUSES or an engine's own."""
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser()
    arguments, rest = parser.parse_known_args([_dashed(token) for token in argv])
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return WRONG
    try:
        return _RUN.get(arguments.command, _fleet)(arguments, rest)
    except SettingError as error:
        say(f"error: {_as_flag(error, arguments) if arguments.command == 'serve' else error}")
        return error.exit_status
    except HeadwayError as error:
        say(f"error: {error}")
        return error.exit_status
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        say(f"error: {message} (see {self.prog} --help)")
        raise SystemExit(WRONG)


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="headway",
        description="Keeps LLM requests moving when some prompts are very long.",
        epilog=_ENDINGS,
        formatter_class=layout,
    )
    parser.add_argument("--version", action="version", version=f"headway {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_serve(
        commands.add_parser(
            "serve",
            help="start an engine: vLLM with headway's scheduler",
            prog="headway serve",
            usage="headway serve [MODEL] [options] [any vLLM flag]",
            description=_SERVE,
            epilog=_POLICIES + "\n" + _EXAMPLES,
            formatter_class=layout,
            allow_abbrev=False,
        )
    )
    route.add_flags(
        commands.add_parser(
            "route",
            help="start a router in front of engines",
            prog="headway route",
            description=route.DESCRIPTION,
            epilog=route.EXAMPLES,
            formatter_class=layout,
            allow_abbrev=False,
        )
    )
    fleet.add_commands(commands)
    completion.add_command(commands)
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="MODEL", help="the same as MODEL")
    parser.add_argument(
        "--emulate",
        metavar="GPU",
        help=f"run on GPUs that aren't there: {', '.join(GPU_BY_NAME)}; or JSON such as "
        f'{{"gpu": "h100-sxm", "slow": 4}} (default: ${emulation.VARIABLE})',
    )
    _add_batching(parser.add_argument_group("batching"))
    parser.add_argument(
        "--additional-config",
        metavar="JSON",
        default="{}",
        help='vLLM\'s flag; its key "headway" may hold the settings above, which win over it',
    )


def _add_batching(group: "argparse._ArgumentGroup") -> None:
    """A flag for each of headway's batching settings."""
    for name, setting in settings.SETTINGS.items():
        kind = setting.kind
        words = kind.words if isinstance(kind, settings.Words) else None
        if words and name == "policy":
            words = (*words, settings.STOCK)
        number = float if isinstance(kind, settings.Amount) else int
        group.add_argument(
            _flag(name),
            dest=f"headway.{name}",
            type=str if words else number,
            choices=words,
            metavar=None if words else "X" if number is float else "N",
            help=f"{setting.meaning} (default: {setting.said})",
        )


def _route(arguments: argparse.Namespace, rest: list[str]) -> int:
    if rest:
        raise SettingError(rest[0], "unknown; see headway route --help")
    return route.route(arguments, say)


def _completion(arguments: argparse.Namespace, rest: list[str]) -> int:
    if rest:
        raise SettingError(rest[0], "unknown; see headway completion --help")
    print(completion.script(_parser(), arguments.shell))  # noqa: T201  what was asked for
    return 0


def _serve(arguments: argparse.Namespace, rest: list[str]) -> int:
    model = arguments.model
    if rest and not rest[0].startswith("-"):
        positional = rest.pop(0)
        if model:
            raise SettingError("--model", f"{model} and {positional} are given; leave out one")
        model = positional
    cpu = launch.cpu_build()
    asked = arguments.emulate or os.environ.get(emulation.VARIABLE)
    wish = command.EngineWish(
        model=model or (known.DEFAULT if asked else ""),
        bundled=None if model or asked else bundled.NAME,
        known=known.well_known(model or known.DEFAULT) if asked else None,
        emulation=emulation.parse(asked) if asked else None,
        batching=_given(arguments),
        additional_config=_json(arguments.additional_config),
        vllm_flags=rest,
    )
    flags, emulates = command.flag_names(rest), wish.emulation is not None
    wrong = known.problem(model, os.environ, flags, emulated=emulates) if model else None
    if wrong:
        raise SettingError("MODEL", wrong)
    # Built once before the model is prepared, so that a wrong setting shows at once.
    engine = _build(wish, cpu=cpu)
    launch.check(engine, cpu=cpu)
    if wish.bundled or wish.known:
        prepared = str(bundled.ensure()) if wish.bundled else known.directory(wish.model)
        engine = _build(dataclasses.replace(wish, model=prepared), cpu=cpu)
    say(_summary(engine))
    return launch.run(engine, lambda: say(_try_it(engine)), say)


def _fleet(arguments: argparse.Namespace, rest: list[str]) -> int:
    return fleet.run(arguments, rest, say)


_RUN: Final[Mapping[str, Callable[[argparse.Namespace, list[str]], int]]] = {
    "completion": _completion,
    "route": _route,
    "serve": _serve,
}


def _build(wish: command.EngineWish, *, cpu: bool) -> command.EngineCommand:
    return command.build(
        wish,
        os.environ,
        cpu=cpu,
        cores=command.usable_cores(),
    )


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    values = {name: getattr(arguments, f"headway.{name}") for name in settings.SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SettingError("--additional-config", f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise SettingError("--additional-config", 'must be an object such as {"key": 1}')
    return value


def _as_flag(error: SettingError, arguments: argparse.Namespace) -> str:
    """The error under the name the user gave: a flag where one was used."""
    if getattr(arguments, error.key, None) is None:
        return str(error)
    return f"{_flag(error.key.rpartition('.')[2])}: {error.problem}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _dashed(token: str) -> str:
    """The token with dashes in its flag's name: vLLM takes --a_b for --a-b, and so do we."""
    name, equals, value = token.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else token


def _version() -> str:
    try:
        return importlib.metadata.version("headway")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _summary(engine: command.EngineCommand) -> str:
    policy = engine.settings.policy if engine.settings else f"{settings.STOCK}'s own scheduler"
    own = {k: v for k, v in engine.env.items() if os.environ.get(k) != v}
    told = [f"{name}={masking.variable(name, value)}" for name, value in sorted(own.items())]
    return "\n".join(
        [
            f"starting {engine.served_name}",
            f"  policy       {policy}",
            f"  address      {engine.url or 'as the flags say'}",
            *([f"  hardware     {engine.emulated}"] if engine.emulated else []),
            f"  environment  {' '.join(told)}",
            f"  command      {shlex.join(masking.words(engine.argv))}",
            "  vLLM takes half a minute or more to start; Ctrl-C stops it",
        ]
    )


def _try_it(engine: command.EngineCommand) -> str:
    chat = {
        "model": engine.served_name,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    body = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(chat))}"
    marked = f" ({engine.emulated})" if engine.emulated else ""
    return "\n".join(
        [
            f"ready: {engine.served_name} on {engine.url}{marked}; try",
            f"  curl {engine.url}/v1/chat/completions {body}",
            f"  curl {engine.url}/metrics",
        ]
    )


def say(text: str) -> None:
    """Write to standard error at once, also from a signal handler."""
    os.write(2, f"headway: {text}\n".encode())
