"""What the paired measurement (paired.py) says, from its rows alone. Pure."""

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

DRAWS = 4_000
LEARNING = 3
"""The first prompts at a bandwidth, in which the gate may still believe the one before; told apart as well."""

PAIRS = (("gate", "compute"), ("gate", "always"))

Row = Mapping[str, Any]


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry a bandwidth, in the order in which they were met. Seconds to the first token."""
    return [of_block(multiple, [row for row in rows if row["multiple"] == multiple]) for multiple in order(rows)]


def order(rows: Sequence[Row]) -> list[float]:
    return list(dict.fromkeys(row["multiple"] for row in rows))


def of_block(multiple: float, rows: Sequence[Row]) -> dict[str, Any]:
    arms = list(dict.fromkeys(sorted(row["arm"] for row in rows)))
    seconds = {arm: {row["prompt"]: row["seconds"] for row in rows if row["arm"] == arm} for arm in arms}
    prompts = sorted({row["prompt"] for row in rows})
    told: dict[str, Any] = {"multiple": multiple, "prompts": len(prompts)}
    told["median_s"] = {arm: statistics.median(seconds[arm].values()) for arm in arms}
    told["slowest_s"] = {arm: max(seconds[arm].values()) for arm in arms}
    told["loaded"] = {arm: sum(row["cached_tokens"] > 0 for row in rows if row["arm"] == arm) for arm in arms}
    for one, other in PAIRS:
        differences = [seconds[one][prompt] - seconds[other][prompt] for prompt in prompts]
        told[f"{one}_minus_{other}"] = {
            "all": paired(differences),
            "learning": paired(differences[:LEARNING]),
            "settled": paired(differences[LEARNING:]),
        }
    return told


def paired(differences: Sequence[float]) -> dict[str, Any] | None:
    """Mean and median in seconds, each with its 95 % bootstrap interval. None without any."""
    if not differences:
        return None
    draw = random.Random(7)
    samples = [draw.choices(differences, k=len(differences)) for _ in range(DRAWS)]
    told: dict[str, Any] = {"pairs": len(differences)}
    for name, of in (("mean", statistics.fmean), ("median", statistics.median)):
        drawn = sorted(of(sample) for sample in samples)
        told[f"{name}_s"] = of(differences)
        told[f"{name}_95_s"] = [drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]]
    return told
