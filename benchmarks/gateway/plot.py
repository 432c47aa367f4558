"""The summary as one SVG: rates and memory as bars, added latency as points on a logarithmic axis. Pure; four panels need
no plotting library."""

import math
from collections.abc import Callable, Mapping
from typing import Any

WIDTH, LEFT, ROW, GAP, TITLE = 760, 150, 22, 34, 26
BAR_END = WIDTH - 110
LABELS = {
    "relay": "bare relay",
    "gateway": "this gateway",
    "gateway-trip": "… each request a trip",
    "litellm": "LiteLLM",
    "vllm-router": "vLLM router (Rust)",
}
OURS, OTHERS = "#1f77b4", "#b0b0b0"
LEAST_MS, MOST_MS = 0.01, 10_000.0

Numbers = Mapping[str, Any]


def svg(summary: Numbers) -> str:
    targets: dict[str, Numbers] = summary["targets"]
    opened: dict[str, Any] | None = summary.get("open")
    height = (4 if opened is None else 5) * (TITLE + ROW * len(targets) + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    panels: list[tuple[str, Mapping[str, Numbers], Callable[[Numbers, int], list[str]]]] = [
        ("Unary requests a second, one core", targets, bars(targets, "requests_per_s", "{:,.0f}")),
        ("Streamed events a second, one core, 256 streams", targets, bars(targets, "events_per_s", "{:,.0f}")),
        (
            "Added latency of a unary request at 70 % of its own rate, ms, logarithmic: p50 (filled), p99 (open)",
            targets,
            latencies,
        ),
        ("Memory with 1,000 idle streams, MiB", targets, bars(targets, "idle_mib", "{:,.0f}")),
    ]
    if opened is not None:
        title = "The same at 70 % of the gateway's open-loop rate, or of its own where that is less"
        panels.insert(3, (title, {name: opened[name]["unary"] for name in targets}, latencies))
    top = 0
    for title, rows, row in panels:
        parts.append(f'<text x="12" y="{top + 18}" font-weight="bold">{title}</text>')
        top += TITLE
        for name, numbers in rows.items():
            parts.append(f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end">{LABELS.get(name, name)}</text>')
            parts += row({**numbers, "colour": OURS if name.startswith("gateway") else OTHERS}, top)
            top += ROW
        top += GAP
    return "\n".join([*parts, "</svg>\n"])


def bars(targets: Mapping[str, Numbers], field: str, form: str) -> Callable[[Numbers, int], list[str]]:
    most = max((numbers[field] or 0.0 for numbers in targets.values()), default=0.0) or 1.0

    def row(numbers: Numbers, top: int) -> list[str]:
        value = numbers[field]
        if value is None:
            return [_text(LEFT + 4, top, "void")]
        width = max(1.0, value / most * (BAR_END - LEFT))
        bar = f'<rect x="{LEFT}" y="{top + 3}" width="{width:.1f}" height="{ROW - 7}" fill="{numbers["colour"]}"/>'
        return [bar, _text(LEFT + width + 6, top, form.format(value))]

    return row


def latencies(numbers: Numbers, top: int) -> list[str]:
    values = numbers["added_p50_ms"], numbers["added_p99_ms"]
    if values[0] is None or values[1] is None:
        return [_text(LEFT + 4, top, "void")]
    colour, middle = numbers["colour"], top + ROW // 2
    left, right = (_place(value) for value in values)
    return [
        f'<line x1="{LEFT}" x2="{BAR_END}" y1="{middle}" y2="{middle}" stroke="#eeeeee"/>',
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{middle}" y2="{middle}" stroke="{colour}" stroke-width="2"/>',
        f'<circle cx="{left:.1f}" cy="{middle}" r="5" fill="{colour}"/>',
        f'<circle cx="{right:.1f}" cy="{middle}" r="5" fill="white" stroke="{colour}" stroke-width="2"/>',
        _text(BAR_END + 10, top, f"{values[0]:.2f} / {values[1]:.2f}"),
    ]


def _place(ms: float) -> float:
    held = min(MOST_MS, max(LEAST_MS, ms))
    return LEFT + math.log(held / LEAST_MS) / math.log(MOST_MS / LEAST_MS) * (BAR_END - LEFT)


def _text(x: float, top: int, text: str) -> str:
    return f'<text x="{x:.1f}" y="{top + 15}">{text}</text>'
