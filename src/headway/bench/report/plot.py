"""A line plot as SVG, for curves of a benchmark; no dependency."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 400
LEFT, RIGHT, TOP, BOTTOM = 60, 130, 20, 50
COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")

Line = Sequence[tuple[float, float]]


def text(x: float, y: float, content: str, anchor: str = "middle") -> str:
    """A text element; x, y: of its anchor."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def lines_svg(
    lines: Mapping[str, Line], x_label: str, y_label: str, marked_y: float | None = None
) -> str:
    """One polyline a name; both axes start at 0, and the y axis ends at 1 or above.

    marked_y: a height to draw a dashed line at.
    """
    points = [point for line in lines.values() for point in line]
    x_max = max((x for x, _ in points), default=1.0) or 1.0
    y_max = max([1.0, *(y for _, y in points)])

    def place(x: float, y: float) -> tuple[float, float]:
        across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + across * x / x_max, TOP + down * (1 - y / y_max)

    def path(line: Line, style: str) -> str:
        corners = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line)
        return f'<polyline points="{corners}" fill="none" {style}/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text {font: 12px sans-serif}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        path([(0, y_max), (0, 0), (x_max, 0)], 'stroke="black"'),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label),
        text(LEFT - 45, TOP - 6, y_label, "start"),
    ]
    for step in range(6):
        x, y = place(x_max * step / 5, y_max * step / 5)
        parts += [text(x, HEIGHT - BOTTOM + 16, f"{x_max * step / 5:.2g}")]
        parts += [text(LEFT - 6, y + 4, f"{y_max * step / 5:.2g}", "end")]
    if marked_y is not None:
        parts += [path([(0, marked_y), (x_max, marked_y)], 'stroke="#999" stroke-dasharray="4"')]
    for index, (name, line) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        parts += [path(sorted(line), f'stroke="{colour}" stroke-width="2"')]
        for x, y in line:
            cx, cy = place(x, y)
            parts += [f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="3" fill="{colour}"/>']
        height = TOP + 16 * (index + 1)
        parts += [
            f'<circle cx="{WIDTH - RIGHT + 18}" cy="{height - 4}" r="5" fill="{colour}"/>',
            text(WIDTH - RIGHT + 28, height, name, "start"),
        ]
    return "\n".join([*parts, "</svg>", ""])


def write_lines(
    path: Path, lines: Mapping[str, Line], x_label: str, y_label: str, marked_y: float | None
) -> None:
    """`lines_svg` to a file."""
    path.write_text(lines_svg(lines, x_label, y_label, marked_y))
