"""`headway completion`: scripts with which shells complete commands, flags and files.

They are made from the command line's own description, and nothing of headway runs at a keypress.
"""

import argparse
import importlib.util
from collections.abc import Iterator
from typing import Any, Final

from headway.core.errors import HeadwayError

SHELLS: Final = ("bash", "zsh", "fish")
_EXAMPLES: Final = """\
for this shell alone:
  bash   eval "$(headway completion bash)"
  zsh    eval "$(headway completion zsh)"
  fish   headway completion fish | source

for every new one:
  bash   headway completion bash > ~/.local/share/bash-completion/completions/headway
  zsh    headway completion zsh > ~/.zfunc/_headway    (a folder of fpath, before compinit)
  fish   headway completion fish > ~/.config/fish/completions/headway.fish
"""
_FILE: Final = "FILE"
_PART: Final = "shtab"


class MissingPartError(HeadwayError):
    """What writes the scripts isn't installed."""


def add_command(commands: Any) -> None:
    """Declare it. commands: what `add_subparsers` made."""
    parser = commands.add_parser(
        "completion",
        help="write a script with which a shell completes this command line",
        prog="headway completion",
        description="Writes a script with which a shell completes headway's commands and flags.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script for one of SHELLS. Raises MissingPartError."""
    if importlib.util.find_spec(_PART) is None:
        raise MissingPartError(f"{_PART} isn't installed; pip install {_PART}")
    import shtab  # noqa: PLC0415  no other command needs it

    for action in _actions(parser):
        if action.metavar == _FILE:
            vars(action)["complete"] = shtab.FILE  # where shtab looks for it
    return str(shtab.complete(parser, shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All flags and arguments, those of commands too."""
    for action in parser._actions:  # noqa: SLF001  argparse has no public way to see them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  as above
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action
