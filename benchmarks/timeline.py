"""A drawing of replicas and first tokens over time, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, LEFT, RIGHT = 960, 64, 12
PANELS = {"replicas": (56, 120), "first token, s": (212, 190)}  # top and height, in pixels
HEIGHT = 440
COLOURS = ("#d98200", "#1b6ac9")
DECADES = (0.01, 0.1, 1.0, 10.0, 100.0)  # seconds, on the logarithmic axis

Points = Sequence[tuple[float, float]]


def svg(
    *,
    phases: Sequence[tuple[str, float]],
    steps: Mapping[str, Points],
    dots: Points,
    crosses: Sequence[float],
    end: float,
) -> str:
    """`steps`: replicas by the second, a line a name; `dots`: (start, seconds to the first token) of
    requests that were answered; `crosses`: starts of those that were not. Times in seconds, 0 to `end`."""

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / end

    parts = [*_phases(phases, x, end), *_axis(x, end)]
    top, height = PANELS["replicas"]
    most = max(value for points in steps.values() for _, value in points) or 1
    for value in range(int(most) + 1):
        parts.append(_rule(top + height * (1 - value / most), str(value)))
    for (name, points), colour, row in zip(steps.items(), COLOURS, (0, 1), strict=False):
        path: list[str] = []
        for at, value in points:
            y = top + height * (1 - value / most) + (row - 0.5) * 3
            corner = [f"{x(at):.1f},{path[-1].rpartition(',')[2]}"] if path else []
            path += [*corner, f"{x(at):.1f},{y:.1f}"]
        line = f'fill="none" stroke="{colour}" stroke-width="2.5"'
        parts.append(f'<polyline points="{" ".join(path)}" {line}/>')
        parts.append(f'<text x="{WIDTH - 150 + 80 * row}" y="20" fill="{colour}">{escape(name)}</text>')
    top, height = PANELS["first token, s"]

    def y_of(seconds: float) -> float:
        low, high = math.log10(DECADES[0]), math.log10(DECADES[-1])
        place = (math.log10(min(max(seconds, DECADES[0]), DECADES[-1])) - low) / (high - low)
        return top + height * (1 - place)

    parts += [_rule(y_of(decade), f"{decade:g}") for decade in DECADES]
    places = "".join(f"M{x(at):.1f} {y_of(seconds):.1f}h0" for at, seconds in dots)  # lines of no length
    ink = 'stroke="#1b6ac9" stroke-width="4" stroke-linecap="round" opacity=".45"'
    parts.append(f'<path d="{places}" {ink}/>')
    parts += [f'<text x="{x(at):.1f}" y="{top + 12}" fill="#c00">×</text>' for at in crosses]
    for name, (top, height) in PANELS.items():
        middle = top + height / 2
        place = f'x="14" y="{middle}" transform="rotate(-90 14 {middle})" text-anchor="middle"'
        parts.append(f"<text {place}>{name}</text>")
    style = 'font-family="sans-serif" font-size="12" fill="#333"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>'
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    return "\n".join([head, paper, *parts, "</svg>"]) + "\n"


def _phases(phases: Sequence[tuple[str, float]], x: Callable[[float], float], end: float) -> list[str]:
    parts = []
    ends = [at for _, at in phases[1:]] + [end]
    for number, ((name, begin), until) in enumerate(zip(phases, ends, strict=True)):
        shade = "#f3f5f8" if number % 2 else "#fff"
        parts.append(
            f'<rect x="{x(begin):.1f}" y="28" width="{x(until) - x(begin):.1f}" height="374" fill="{shade}"/>'
        )
        parts.append(f'<text x="{x(begin) + 3:.1f}" y="{42}" font-size="11">{escape(name)}</text>')
    return parts


def _axis(x: Callable[[float], float], end: float) -> list[str]:
    ticks = range(0, int(end) + 1, 10)
    labels = [f'<text x="{x(at):.1f}" y="418" text-anchor="middle">{at}</text>' for at in ticks]
    return [*labels, f'<text x="{WIDTH / 2}" y="434" text-anchor="middle">seconds</text>']


def _rule(y: float, label: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ccc" stroke-width=".7"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )
