"""Real ranks over gloo, one process each, with one fault; prints what each surviving rank got, as JSON lines.

    python -m tests.chaos.kv.gloo_ranks

Torch is imported once and the ranks are forked, so that a scenario costs a fraction of a second.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from prime_inference.kv.sharding.broadcast import ShardedLoad

TIMEOUT_S = 2.0
CHUNK_VALUES = 64


@dataclass
class Scenario:
    """`missing`: chunks that their owners cannot read. `loads`: rounds of the same load, the fault in the first."""

    name: str
    world: int
    chunks: int
    missing: list[int] = field(default_factory=list)
    raises: list[int] = field(default_factory=list)
    other_list: list[int] = field(default_factory=list)
    dies_at: dict[int, str] = field(default_factory=dict)
    stalls: list[int] = field(default_factory=list)
    store_on_rank: int | None = None
    loads: int = 2
    first: int = 0
    """The load's first chunk is that many chunks into the prompt."""


SCENARIOS = [
    Scenario("all there", 4, 10),
    Scenario("one rank alone", 1, 5, missing=[3]),
    Scenario("a chunk missing", 4, 10, missing=[6]),
    Scenario("a rank found nothing", 4, 10, missing=[3, 7]),
    Scenario("the first chunk missing", 4, 10, missing=[0]),
    Scenario("every rank misses something", 4, 16, missing=[12, 9, 14, 11]),
    Scenario("more ranks than chunks", 4, 2),
    Scenario("no chunks at all", 4, 0),
    Scenario("a load in the middle of a prompt", 4, 10, missing=[6], first=7),
    Scenario("a load raises", 4, 10, raises=[2]),
    Scenario("two loads raise", 4, 10, raises=[1, 3]),
    Scenario("a rank has another chunk list", 4, 10, other_list=[1]),
    Scenario("a rank dies before the exchange", 4, 10, dies_at={1: "load"}),
    Scenario("a rank dies at its first broadcast", 4, 10, dies_at={2: "broadcast 2"}),
    Scenario("a rank dies at the last broadcast", 4, 10, dies_at={1: "broadcast 9"}),
    Scenario("a rank dies before the verdict", 4, 10, dies_at={3: "verdict"}),
    Scenario("two ranks die", 4, 10, dies_at={1: "load", 2: "broadcast 4"}),
    Scenario("the rank with the store dies", 3, 6, dies_at={0: "broadcast 3"}, store_on_rank=0),
    Scenario("a rank stalls past the deadline", 3, 6, stalls=[1]),
]


class Mortal(ShardedLoad):
    """Kills its own process at a given step, as the kernel would."""

    dies_at = ""

    def _exchange(self, report, deadline):  # type: ignore[no-untyped-def]
        self._die_if("load")
        return super()._exchange(report, deadline)

    def _broadcast(self, buffer, source, deadline):  # type: ignore[no-untyped-def]
        self._die_if(f"broadcast {self.chunk}")
        self.chunk += 1
        super()._broadcast(buffer, source, deadline)

    def _verdict(self, deadline):  # type: ignore[no-untyped-def]
        self._die_if("verdict")
        return super()._verdict(deadline)

    def _die_if(self, step: str) -> None:
        if self.dies_at == step:
            os.kill(os.getpid(), signal.SIGKILL)


def content(chunk: int, load: int) -> torch.Tensor:
    return torch.full((CHUNK_VALUES,), float(1000 * load + chunk + 1))


def loader(
    scenario: Scenario, rank: int, load: int, buffers: list[torch.Tensor]
) -> Callable[[Sequence[int]], list[bool]]:
    def load_owned(owned: Sequence[int]) -> list[bool]:
        first = load == 1
        if first and rank in scenario.stalls:
            time.sleep(TIMEOUT_S + 1.0)
        held = []
        for chunk in owned:
            if first and rank in scenario.raises and chunk != owned[0]:
                raise OSError("the tier is broken")
            held.append(not (first and chunk in scenario.missing))
            if held[-1]:
                buffers[chunk].copy_(content(chunk, load))
        return held

    return load_owned


def rank_main(scenario: Scenario, rank: int, port: int, out: int) -> None:
    hosts = scenario.store_on_rank == rank
    # Without wait_for_workers a rank that hosts the store does not wait here for the others.
    store = dist.TCPStore("127.0.0.1", port, is_master=hosts, timeout=timedelta(seconds=20), wait_for_workers=False)
    group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, scenario.world, timedelta(seconds=30))
    load_end = Mortal(group, dist.PrefixStore("load", store), rank, scenario.world)
    load_end.dies_at = scenario.dies_at.get(rank, "")
    for load in range(1, scenario.loads + 1):
        load_end.chunk = 0
        buffers = [torch.zeros(CHUNK_VALUES) for _ in range(scenario.chunks)]
        hashes = [b"%d" % chunk for chunk in range(scenario.chunks)]
        if load == 1 and rank in scenario.other_list:
            hashes[-1] = b"other"
        began = time.monotonic()
        raised = ""
        chunks, outcome = -1, ""
        try:
            agreement = load_end.load(
                f"request-{load}",
                hashes,
                buffers,
                loader(scenario, rank, load, buffers),
                TIMEOUT_S,
                first=scenario.first,
            )
            chunks, outcome = agreement.chunks, agreement.outcome
        except OSError as error:
            raised = str(error)
        line = {
            "scenario": scenario.name,
            "load": load,
            "rank": rank,
            "chunks": chunks,
            "outcome": outcome,
            "raised": raised,
            "took_s": time.monotonic() - began,
            "right": [bool(torch.equal(buffer, content(chunk, load))) for chunk, buffer in enumerate(buffers)],
        }
        os.write(out, (json.dumps(line) + "\n").encode())
    os._exit(0)  # destructors of a broken group wait for peers that are gone


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    torch.set_num_threads(1)
    for scenario in SCENARIOS:
        port = free_port()
        children = []
        for rank in range(scenario.world):
            child = os.fork()
            if child == 0:
                try:
                    rank_main(scenario, rank, port, sys.stdout.fileno())
                finally:
                    os._exit(1)
            children.append(child)
        # The store outlives every rank unless the scenario puts it on one. Started after the fork: it has threads.
        store = None
        if scenario.store_on_rank is None:
            store = dist.TCPStore(
                "127.0.0.1", port, is_master=True, timeout=timedelta(seconds=20), wait_for_workers=False
            )
        for child in children:
            os.waitpid(child, 0)
        del store


if __name__ == "__main__":
    main()
