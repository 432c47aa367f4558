"""Mooncake's store on one machine as processes and settings: pure.

A master (`mooncake-master`), which knows where every object is, and one store (`mooncake-store`), whose memory holds them. The
engines give no memory of their own, so what is stored outlives them.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from prime_inference.local.spec import HttpOk, ProcessSpec, Role

STORE_MIB = 512
"""22,000 tokens of SmolLM2."""

BUFFER_MIB = 64
"""Each engine's own, for transfers."""

PROCESSES_BYTES = 150_000_000
"""Master and store beside that memory: 115 MB measured when idle."""

LEASE_MS = 10_000
"""An object that was found is not evicted for so long. Mooncake's 5 s are less than a prompt waits here."""

PORTS = 4


@dataclass(frozen=True)
class MooncakePorts:
    master: int
    master_http: int
    store: int
    store_http: int


def mooncake_bytes() -> int:
    return PROCESSES_BYTES + (STORE_MIB + BUFFER_MIB) * 2**20


def mooncake_config(ports: MooncakePorts) -> dict[str, object]:
    """What MOONCAKE_CONFIG_PATH names: the engines' way to the master."""
    return {
        "mode": "standalone-store",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": f"127.0.0.1:{ports.master}",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 0,
        "local_buffer_size": f"{BUFFER_MIB}MB",
    }


def mooncake_specs(ports: MooncakePorts, inherited: dict[str, str], *, nice: int) -> list[ProcessSpec]:
    programs = Path(sys.executable).parent
    master = ProcessSpec(
        name="mooncake-master",
        role=Role.MOONCAKE,
        argv=(
            str(programs / "mooncake_master"),
            "--rpc_address=127.0.0.1",
            f"--rpc_port={ports.master}",
            f"--metrics_port={ports.master_http}",
            f"--default_kv_lease_ttl={LEASE_MS}",
        ),
        env=dict(inherited),
        probe=HttpOk(f"http://127.0.0.1:{ports.master_http}/health"),
        nice=nice,
    )
    store = ProcessSpec(
        name="mooncake-store",
        role=Role.MOONCAKE,
        argv=(
            str(programs / "mooncake_client"),
            "--host=127.0.0.1",
            f"--port={ports.store}",
            f"--master_server_address=127.0.0.1:{ports.master}",
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            f"--global_segment_size={STORE_MIB}MB",
            "--enable_http_server=true",
            f"--http_port={ports.store_http}",
        ),
        env=dict(inherited),
        probe=HttpOk(f"http://127.0.0.1:{ports.store_http}/health"),
        after=("mooncake-master",),
        nice=nice,
    )
    return [master, store]
