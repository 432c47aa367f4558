"""What the witness (witness.py) wrote, judged. Apart from it, since vLLM's processes import their parent's modules first, and
vLLM 0.31 does not start where LMCache was imported before it (its kernel scan trips over llvmlite's objects)."""

from collections.abc import Sequence
from typing import Any

FILE = "witness.file"


def judge(lines: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many digests of loaded chunks are those of the store, and how many are not: at the load and at the end.
    A chunk stored more than once with different bytes counts as `stores_differ`."""
    stored: dict[str, set[str]] = {}
    for line in lines:
        if line["at"] == "store":
            stored.setdefault(line["prefix"], set()).add(line["digest"])
    counts = {"stored": len(stored), "stores_differ": sum(len(digests) > 1 for digests in stored.values())}
    for at in ("load", "end"):
        seen = [line for line in lines if line["at"] == at]
        counts[f"{at}_same"] = sum(line["digest"] in stored.get(line["prefix"], ()) for line in seen)
        counts[f"{at}_other"] = len(seen) - counts[f"{at}_same"]
    return counts
