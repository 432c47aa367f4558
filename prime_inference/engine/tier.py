"""What a prefill worker is told of the KV tier: pure.

NIXL stays the way to decode. vLLM's MultiConnector asks both connectors: NIXL never brings tokens to a prefill worker, so the
tier connector is the one that loads, and both save.
"""

from dataclasses import dataclass
from typing import Any

CONNECTOR = "TierConnector"
CONNECTOR_MODULE = "prime_inference.kv.connector"

MOONCAKE_CONNECTOR = "MooncakeTierConnector"
MOONCAKE_CONNECTOR_MODULE = "prime_inference.kv.mooncake_connector"

SHARDED_CONNECTOR = "ShardedTierConnector"
SHARDED_CONNECTOR_MODULE = "prime_inference.kv.sharded_connector"

CPU_ESTIMATES = {"prime.gate.bytes_per_s": 1e9, "prime.gate.prefill_tokens_per_s": 500}
"""SmolLM2 on one core, and memory to memory through loopback: starting points, replaced by what is observed."""

CPU_PATIENCE = {"prime.gate.longest_deadline_s": 10.0, "prime.gate.slack": 50.0}
CPU_ANSWER_WITHIN = {"prime.server.answer_within_s": 10.0}
"""On a few cores that serve engines, server and shards in turn, answers come late without anything being wrong."""

GPU_ESTIMATES = {"prime.gate.bytes_per_s": 5e9, "prime.gate.prefill_tokens_per_s": 20_000}
"""An order of magnitude for one node; the gate learns the rest."""

START_WITHIN_S = 120.0
"""How long an engine that starts waits for LMCache's server, which starts beside it."""

HEARTBEAT_S = 2.0
"""LMCache's own, which keeps a living worker registered."""


@dataclass(frozen=True)
class TierPlan:
    server_ports: tuple[int, ...] = ()
    """LMCache's servers on this machine: one, or one a rank of a worker whose ranks all hold the same KV."""
    mooncake_config: str | None = None
    """The file that MOONCAKE_CONFIG_PATH names; then the tier is Mooncake's store and there is no LMCache."""


def with_tier(nixl: dict[str, Any], tier: TierPlan, *, on_gpu: bool) -> dict[str, Any]:
    """vLLM's `--kv-transfer-config` of a worker that has NIXL and a tier."""
    connector, module, extra = _mooncake() if tier.mooncake_config else _lmcache(tier, on_gpu)
    loads = {
        "kv_connector": connector,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            **extra,
            # The gateway gives every tenant a salt; what comes past it is nobody's.
            "prime.salt": "required",
            **(GPU_ESTIMATES if on_gpu else CPU_ESTIMATES | CPU_PATIENCE),
        },
    }
    return {
        "kv_connector": "MultiConnector",
        "kv_role": nixl["kv_role"],
        # vLLM's default fails the request whose load failed; here it is computed.
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [nixl, loads]},
    }


def _lmcache(tier: TierPlan, on_gpu: bool) -> tuple[str, str, dict[str, Any]]:
    sharded = len(tier.server_ports) > 1
    extra: dict[str, Any] = {
        "lmcache.mp.server_urls": [f"tcp://127.0.0.1:{port}" for port in tier.server_ports],
        "lmcache.mp.mq_timeout": START_WITHIN_S,
        "lmcache.mp.heartbeat_interval": HEARTBEAT_S,
        **({} if on_gpu else CPU_ANSWER_WITHIN),
    }
    if sharded:
        return SHARDED_CONNECTOR, SHARDED_CONNECTOR_MODULE, extra
    return CONNECTOR, CONNECTOR_MODULE, extra


def _mooncake() -> tuple[str, str, dict[str, Any]]:
    return MOONCAKE_CONNECTOR, MOONCAKE_CONNECTOR_MODULE, {"load_async": True}
