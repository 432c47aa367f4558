"""What every vLLM process of ours loads first (entry-point group `vllm.general_plugins`).

vLLM calls `register` in the worker's main process and in each engine process, possibly more than once. On a GPU nothing is
changed but by PRIME_* variables: those hosts have cores to spare for polling, and latency counts there.
"""

from prime_inference.engine.busy_wait import wait_to_be_told
from prime_inference.engine.cpu_dispatch import choose_decode_kernels
from prime_inference.engine.cpu_norm import register_norms
from prime_inference.engine.cpu_seeds import rewind_seeded_generators
from prime_inference.engine.nixl_spin import let_progress_thread_sleep
from prime_inference.engine.tier import (
    CONNECTOR,
    CONNECTOR_MODULE,
    MOONCAKE_CONNECTOR,
    MOONCAKE_CONNECTOR_MODULE,
    SHARDED_CONNECTOR,
    SHARDED_CONNECTOR_MODULE,
)


def register() -> None:
    from vllm.platforms import current_platform  # noqa: PLC0415 - this module is found before vLLM is wanted

    name_tier_connectors()
    let_progress_thread_sleep()
    if current_platform.is_cpu():
        wait_to_be_told()
        register_norms()
        choose_decode_kernels()
        rewind_seeded_generators()


def name_tier_connectors() -> None:
    """vLLM finds a class by its module path but, beside another connector, its counters only by a registered name."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: PLC0415 - as above

    ours = {
        CONNECTOR: CONNECTOR_MODULE,
        SHARDED_CONNECTOR: SHARDED_CONNECTOR_MODULE,
        MOONCAKE_CONNECTOR: MOONCAKE_CONNECTOR_MODULE,
    }
    for name, module in ours.items():
        if name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, module, name)
