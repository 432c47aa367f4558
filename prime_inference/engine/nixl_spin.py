"""NIXL's progress thread, made to sleep between polls.

NIXL's Python API (1.4.1) sets `pthrDelay = 0` on every agent it makes, with no option to change it, so that the UCX
progress thread polls a core without pause: on a machine with fewer cores than engines, idle workers starve the busy
one (ai-dynamo/nixl issue 2102 describes the thread). The cure hands NIXL a configuration class that raises that one
value and passes everything else through.
"""

import importlib
import os
from types import ModuleType
from typing import Any

PROGRESS_SLEEP_US = 5000
"""Pause between two polls of the progress thread, in microseconds. Measured on two idle CPU workers: 0 burns 2.3 s of
CPU in 3 s, 1,000 burns 0.05 s and wakes 50 times a token in the middle of the decode worker's matrix products (17 tok/s
beside 20 with 5,000, one after the other). A transfer is seen to end up to 5 ms later: a tenth of a decode step here."""

SLEEP_VARIABLE = "PRIME_NIXL_PROGRESS_SLEEP_US"
"""Set to 0 to leave NIXL as it is (GPU hosts with cores to spare, where posting latency counts)."""

NIXL_API_MODULES = ("nixl_cu13._api", "nixl_cu12._api")
"""The package `nixl` forwards to one of these, chosen by the CUDA version it finds."""


def let_progress_thread_sleep() -> None:
    """Patch each installed NIXL binding. Does nothing where NIXL is absent or the variable says 0."""
    sleep_us = int(os.environ.get(SLEEP_VARIABLE, PROGRESS_SLEEP_US))
    if sleep_us <= 0:
        return
    for name in NIXL_API_MODULES:
        try:
            api = importlib.import_module(name)
        except ImportError:
            continue  # the binding for the other CUDA version
        patch_bindings(api.nixlBind, sleep_us)


def patch_bindings(bindings: ModuleType, sleep_us: int) -> None:
    """Replace `nixlAgentConfig` in a bindings module by a subclass whose `pthrDelay` is at least `sleep_us`."""
    stock: Any = bindings.nixlAgentConfig
    if getattr(stock, "_prime_sleep", False):
        return

    class SleepingAgentConfig(stock):  # type: ignore[misc]
        _prime_sleep = True

        def __setattr__(self, name: str, value: object) -> None:
            if name == "pthrDelay" and isinstance(value, int):
                value = max(value, sleep_us)
            super().__setattr__(name, value)

    bindings.nixlAgentConfig = SleepingAgentConfig  # type: ignore[attr-defined]
