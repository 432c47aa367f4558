"""From the live run's samples to its numbers: pure, so that a test can compute them again."""

from collections import Counter
from statistics import median
from typing import Any

Samples = list[dict[str, Any]]


def summarise(samples: dict[str, Samples]) -> dict[str, Any]:
    return {name: one(part) for name, part in samples.items()}


def one(samples: Samples) -> dict[str, Any]:
    classes = Counter(sample["class"] for sample in samples)
    ended = classes["valid"] + classes["error"]
    tokens = [sample["tokens"] for sample in samples if sample["tokens"] is not None]
    return {
        "requests": len(samples),
        "valid": classes["valid"],
        "cut_by_the_token_budget": classes["cut"],
        "errors": classes["error"],
        "errors_of_those_not_cut_percent": round(100 * classes["error"] / ended, 1) if ended else None,
        "requests_without_a_valid_call_percent": round(100 * (1 - classes["valid"] / len(samples)), 1),
        "errors_by_reason": dict(
            Counter(sample["why"] for sample in samples if sample["class"] == "error").most_common(8)
        ),
        "tokens_p50": median(tokens) if tokens else None,
        "seconds_p50": round(median(sample["seconds"] for sample in samples), 2),
    }
