"""One consistent view of the fleet file and the keys file: a request keeps the one it started with."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.accounts.keys import KeyRing, load_keys
from gateway.admission.policy import Capacity
from gateway.fleet.registry import Fleet, load_fleet


class SnapshotError(Exception):
    """Each file is right by itself, but not both together."""


@dataclass(frozen=True)
class Snapshot:
    fleet: Fleet
    keys: KeyRing
    capacities: Mapping[str, Capacity]
    """By deployment: its limit, and what of it is promised to whom."""


def load_snapshot(fleet_file: Path, keys_file: Path) -> Snapshot:
    """Raises FleetFileError, KeysFileError and SnapshotError."""
    return snapshot_of(load_fleet(fleet_file), load_keys(keys_file))


def snapshot_of(fleet: Fleet, keys: KeyRing) -> Snapshot:
    unknown = sorted(set(keys.floors) - set(fleet.deployments))
    if unknown:
        raise SnapshotError(f"tenants have capacity reserved at unknown deployments: {', '.join(unknown)}")
    capacities = {}
    for name, deployment in fleet.deployments.items():
        try:
            capacities[name] = Capacity(deployment.limit, keys.floors.get(name, {}))
        except ValueError as error:
            raise SnapshotError(f"deployment {name}: {error}") from error
    return Snapshot(fleet, keys, capacities)
