"""Which workers a Dynamo frontend knows: its `/health` is 200 with none, so the list is what counts."""

import json
from dataclasses import dataclass

GENERATE = "generate"
PREFILL_COMPONENT = "prefill"
DECODE_COMPONENT = "backend"
"""Dynamo's names for the two pools."""


@dataclass(frozen=True)
class Instances:
    prefill: int
    decode: int

    def at_least(self, prefill: int, decode: int) -> bool:
        return self.prefill >= prefill and self.decode >= decode


def instances_in(health: bytes) -> Instances:
    """Count the generate endpoints in the frontend's answer; one that is not JSON has none."""
    try:
        listed = json.loads(health).get("instances") or []
    except ValueError:
        return Instances(0, 0)
    components = [entry.get("component") for entry in listed if entry.get("endpoint") == GENERATE]
    return Instances(components.count(PREFILL_COMPONENT), components.count(DECODE_COMPONENT))
