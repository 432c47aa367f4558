"""What all replicas together hold at a site, read from its Valkey for people to look at."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.admission import Weight
from gateway.admission.valkey_store import held_key, lease_key
from gateway.site import SiteUnavailable
from gateway.site.valkey_store import Script, SiteValkey

SCRIPT = Script.load(("gateway.admin", "leases.lua"))


@dataclass(frozen=True)
class Lease:
    epoch: str
    left_ms: int
    """Until it expires, unless renewed."""


@dataclass(frozen=True)
class SiteLeases:
    leases: tuple[Lease, ...] = ()
    held: dict[str, dict[str, Weight]] = field(default_factory=dict)
    """Deployment -> account -> held by all replicas, headroom included."""


async def leases_of(site: SiteValkey, deployments: Sequence[str]) -> SiteLeases | None:
    """None while the site cannot be asked."""
    keys = [lease_key(site), *(held_key(site, name) for name in deployments)]
    try:
        answer = json.loads(await site.run(SCRIPT, keys, []))
    except SiteUnavailable:
        return None
    # An empty Lua table is an object in JSON, whatever it was meant as.
    leases = tuple(Lease(epoch, int(left)) for epoch, left in answer["leases"] or ())
    held = {
        name: {account: Weight(int(requests), int(tokens)) for account, (requests, tokens) in _only(each).items()}
        for name, each in zip(deployments, answer["held"] or (), strict=True)
    }
    return SiteLeases(leases, held)


def _only(each: list[dict[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    return each[0] if each else {}
