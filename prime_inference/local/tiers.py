"""The KV tiers of one machine as processes and settings: pure.

`lmcache`: Valkey shards (`l2-N`) behind one LMCache server (`lmcache`), which every prefill worker's tier connector asks.
Where all ranks of a worker hold the same KV there is one server a rank (`lmcache-R`), each with its own share of the shards
and of L1.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from prime_inference.engine.tier import TierPlan
from prime_inference.kv.capacity import CHUNK_TOKENS
from prime_inference.local.spec import HttpOk, ProcessSpec, Role, TcpPing

SHARD_BYTES = 256 * 1024 * 1024
"""Most a shard holds before it forgets what was not used for longest."""

SERVER_BYTES = 700_000_000
"""LMCache's server beside L1: 510 MB measured when idle."""

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class TierPorts:
    shards: list[int]
    servers: list[int]
    servers_http: list[int]

    def shards_of(self, server: int) -> list[int]:
        """Numbers of the shards behind this server."""
        return list(range(server, len(self.shards), len(self.servers)))

    def name_of(self, server: int) -> str:
        return "lmcache" if len(self.servers) == 1 else f"lmcache-{server}"


def tier_ports_needed(shards: int, servers: int = 1) -> int:
    return shards + 2 * servers if shards else 0


def tier_ports_of(free: list[int], servers: int = 1) -> TierPorts | None:
    """None when no tier is wanted, so none was asked for."""
    if not free:
        return None
    return TierPorts(free[2 * servers :], free[:servers], free[servers : 2 * servers])


def tier_bytes(shards: int, l1_gib: float, servers: int = 1) -> int:
    """Memory of the tier when it is full."""
    return servers * SERVER_BYTES + int(l1_gib * 2**30) + shards * SHARD_BYTES if shards else 0


def shared_memory_of(server_port: int) -> str:
    """The name of L1's segment. Always the same for a stack, so that a server started again replaces what a killed one left."""
    return f"lmcache_l1_pool_prime_{server_port}"


def tier_specs(
    ports: TierPorts, l1_gib: float, valkey_binary: str, inherited: dict[str, str], *, nice: int
) -> list[ProcessSpec]:
    """`l1_gib`: of all servers together."""
    return [
        *(_shard(number, port, valkey_binary, inherited) for number, port in enumerate(ports.shards)),
        *(_server(ports, server, l1_gib, inherited, nice) for server in range(len(ports.servers))),
    ]


def _shard(number: int, port: int, valkey_binary: str, inherited: dict[str, str]) -> ProcessSpec:
    argv = (
        valkey_binary,
        *("--bind", "127.0.0.1"),
        *("--port", str(port)),
        *("--maxmemory", str(SHARD_BYTES)),
        *("--maxmemory-policy", "allkeys-lru"),
        *("--appendonly", "no"),
        *("--save", ""),
    )
    return ProcessSpec(f"l2-{number}", Role.L2_SHARD, argv, dict(inherited), TcpPing(port))


def _server(ports: TierPorts, server: int, l1_gib: float, inherited: dict[str, str], nice: int) -> ProcessSpec:
    shards = ports.shards_of(server)
    parameters = {"urls": [f"resp://127.0.0.1:{ports.shards[number]}" for number in shards]}
    argv = (
        *(sys.executable, "-m", "prime_inference.kv.server", json.dumps(parameters)),
        *("--host", "127.0.0.1"),
        *("--port", str(ports.servers[server])),
        *("--http-host", "127.0.0.1"),
        *("--http-port", str(ports.servers_http[server])),
        *("--chunk-size", str(CHUNK_TOKENS)),
        *("--supported-transfer-mode", "auto"),
        # Collision-resistant: equal hashes of two prompts would be one tenant's answer given to another.
        *("--hash-algorithm", "blake3"),
        *("--l1-size-gb", str(l1_gib / len(ports.servers))),
        *("--eviction-policy", "LRU"),
        # LMCache's default forgets what came from L2 once it was read: the next hit would fetch it again.
        *("--l2-prefetch-policy", "retain"),
        *("--shm-name", shared_memory_of(ports.servers[server])),
    )
    return ProcessSpec(
        name=ports.name_of(server),
        role=Role.LMCACHE,
        argv=argv,
        env={**inherited, "OMP_NUM_THREADS": "1", "LMCACHE_TRACK_USAGE": "false"},
        probe=HttpOk(f"http://127.0.0.1:{ports.servers_http[server]}/healthcheck"),
        after=tuple(f"l2-{number}" for number in shards),
        ready_within_s=180.0,
        nice=nice,
    )


def tier_plan(ports: TierPorts | None) -> TierPlan | None:
    """What a prefill worker must know of the tier."""
    return None if ports is None else TierPlan(server_ports=tuple(ports.servers))


def forget_shared_memory(ports: TierPorts | None) -> None:
    """L1's segment outlives a server that was killed."""
    for port in ports.servers if ports is not None else ():
        (SHARED_MEMORY / shared_memory_of(port)).unlink(missing_ok=True)
