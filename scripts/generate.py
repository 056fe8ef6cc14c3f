"""Write what follows from the code: JSON schemas, and the tables of docs/router-config.md.

`python scripts/generate.py` after a setting or a status has changed; a test holds them to the code.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from headway import config
from headway.config.fleet import STARTING, Fleet
from headway.config.model import Pool, Router
from headway.config.problems import dotted
from headway.config.reading import REQUIRED, UNSET, Setting, all_settings
from headway.core import reports, status

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "router-config.md"
HEAD: Final = "| setting | default | meaning |"


def generated() -> dict[Path, str]:
    """The files, and what is to stand in them."""
    package = ROOT / "src" / "headway"
    return {
        package / "config" / "headway.schema.json": config.schema_text(),
        package / "core" / "status.schema.json": status.schema_text(),
        package / "core" / "doctor.schema.json": reports.schema_text(reports.DoctorReport),
        package / "core" / "dry_run.schema.json": reports.schema_text(reports.DryRunReport),
        PAGE: _page(PAGE.read_text("utf-8")),
    }


def _page(page: str) -> str:
    """The page with its two tables anew: of every router, and of engines that are started."""
    pool = list(all_settings(Pool, ("pool",)))
    started = [each for each in pool if each[0][1] in STARTING]
    tables = iter(
        [
            [*all_settings(Router, ("router",)), *(each for each in pool if each not in started)],
            [*all_settings(Fleet, ("fleet",)), *started],
        ]
    )
    lines: list[str] = []
    for is_row, group in itertools.groupby(page.splitlines(), lambda line: line.startswith("| `")):
        held = list(group)
        follows_head = HEAD in lines[-2:]
        lines += _rows(next(tables)) if is_row and follows_head else held
    return "\n".join(lines) + "\n"


def _rows(settings: Iterable[tuple[tuple[str | int, ...], Setting]]) -> Iterator[str]:
    for path, setting in settings:
        default = ""
        if setting.default is REQUIRED:
            default = "required"
        elif setting.default not in UNSET:
            value = setting.default
            shown = f"{value:g}" if isinstance(value, float) else json.dumps(value)
            default = f"`{shown}`"
        yield f"| `{dotted(path)}` | {default} | {setting.meaning} |"


def main() -> None:
    """Write them."""
    for path, text in generated().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
