"""What an agent remembers over its own restarts: baselines, what the node had at its best, open faults."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prime_inference.health.baselines import Baselines
from prime_inference.health.checks import Expected
from prime_inference.health.faults import Fault, Faults
from prime_inference.health.verdicts import Check, Severity

SCHEMA = 1


def dump(baselines: Baselines, expected: Expected, faults: Faults) -> str:
    return json.dumps(
        {
            "schema": SCHEMA,
            "boot_id": baselines.boot_id,
            "counters": baselines.entries,
            "expected": {
                "gpus": expected.gpus,
                "links": expected.links,
                "ports": sorted(expected.ports),
                "joined": sorted(expected.joined),
                "imex": expected.imex,
            },
            "faults": [asdict(fault) for fault in faults.open.values()],
            "openings": [[check, entity, times] for (check, entity), times in faults.openings.items()],
        }
    )


def restore(text: str, clear_after_s: float) -> tuple[Baselines, Expected, Faults] | None:
    """What `dump` wrote; None for another schema or a torn file: the agent then begins anew."""
    try:
        content = json.loads(text)
        if content["schema"] != SCHEMA:
            return None
        given: dict[str, Any] = content["expected"]
        # A file of an older agent has no "joined", or no "imex".
        joined, imex = set(given.get("joined", [])), bool(given.get("imex"))
        expected = Expected(given["gpus"], dict(given["links"]), set(given["ports"]), joined, imex)
        faults = Faults(clear_after_s)
        for entry in content["faults"]:
            fault = Fault(**{**entry, "check": Check(entry["check"]), "severity": Severity(entry["severity"])})
            # Goodness before the restart was not seen to the end.
            fault.good_since = None
            faults.open[fault.check, fault.entity] = fault
        faults.openings = {(Check(check), entity): times for check, entity, times in content["openings"]}
        return Baselines(content["boot_id"], dict(content["counters"])), expected, faults
    except (ValueError, KeyError, TypeError):
        return None


def write(path: Path, text: str) -> None:
    """Whole or not at all: a torn file would be a node without a past."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
