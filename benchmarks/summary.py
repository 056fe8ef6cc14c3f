"""Prints the targets of the stored results as the table that README shows."""

import json
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def figure(value: float | None) -> str:
    """Three significant digits, or a dash for what was not measured."""
    return "-" if value is None else f"{value:.3g}"


def rows(path: Path) -> list[str]:
    """A line a target of one report."""
    lines = []
    for target in json.loads(path.read_text())["targets"]:
        spread = f"{figure(target['low'])} to {figure(target['high'])}"
        met = {True: "yes", False: "**no**", None: "not measured"}[target["met"]]
        value = f"{figure(target['value'])} ({spread})"
        sign = "≤" if target["bound_is"] == "at most" else "≥"
        lines.append(f"| {target['name']} | {sign} {target['bound']} | {value} | {met} |")
    return lines


def main() -> int:
    """All reports under `results/`, or those named."""
    paths = [Path(name) for name in sys.argv[1:]] or sorted(RESULTS.glob("*.json"))
    print("| what | target | measured (spread) | met |\n|---|---|---|---|")
    for path in paths:
        print("\n".join(rows(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
