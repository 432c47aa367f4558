"""Time to first token over time of arrival, one line an arm, as SVG. Pure; no plotting library is needed for seven lines."""

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, TOP, LEGEND = 720, 400, 60, 20, 220
COLOURS = ("#666666", "#d62728", "#ff7f0e", "#2ca02c", "#9467bd", "#1f77b4", "#17becf")


def svg(arrivals: Sequence[float], samples: Mapping[str, Sequence[float]]) -> str:
    """`samples`: arm -> seconds, one for each arrival. The vertical axis is logarithmic."""
    seconds = [value for values in samples.values() for value in values]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))

    def x(at: float) -> float:
        return LEFT + at / arrivals[-1] * WIDTH

    def y(value: float) -> float:
        return TOP + (high - math.log10(value)) / (high - low) * HEIGHT

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + LEGEND}" height="{TOP + HEIGHT + 50}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    for tenth in range(0, 11, 2):
        at = arrivals[-1] * tenth / 10
        parts.append(f'<text x="{x(at):.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle">{at:.0f}</text>')
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle">seconds of arrival</text>')
    for number, ((name, values), colour) in enumerate(zip(samples.items(), COLOURS, strict=False)):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in zip(arrivals, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
        parts.append(f'<text x="{LEFT + WIDTH + 12}" y="{TOP + 16 + 20 * number}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])
