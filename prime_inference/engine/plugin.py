"""What every vLLM process of ours loads first (entry-point group `vllm.general_plugins`).

vLLM calls `register` in the worker's main process and in each engine process, possibly more than once.
"""

from prime_inference.engine.cpu_attention import avoid_amx
from prime_inference.engine.nixl_spin import let_progress_thread_sleep


def register() -> None:
    let_progress_thread_sleep()
    avoid_amx()
