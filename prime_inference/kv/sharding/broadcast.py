"""The collective load of a sharded prefix (torch shell).

    1. each rank loads its owned chunks; whatever that brings, an error included, it goes on to
    2. one all-gather of reports, from which every rank computes the same agreement (agreement.py)
    3. one broadcast a chunk of the agreed prefix, in order, from its owner
    4. a verdict in the group's store, written once: usable if all ranks came this far, else lost

Step 4 is there because a rank that dies during 2 or 3 may do so after some ranks received its part and before others
did: without a single place that decides, one survivor would use what another lacks. A survivor that fails or runs out
of time writes "lost" unless a verdict stands, and all obey the one that stands.

Every collective is waited for until the deadline and no longer. With gloo that holds; NCCL's work on a GPU stream
cannot be given up this way, and this module has not been run with NCCL.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from prime_inference.kv.sharding.agreement import (
    REPORT_BYTES,
    Agreement,
    LoadOutcome,
    RankReport,
    agree,
    fingerprint,
)
from prime_inference.kv.sharding.ownership import owned_chunks, owner_of
from prime_inference.kv.sharding.prefix import found_in_a_row, reach

LOST = "lost"
VERDICT_GRACE_S = 0.5
"""After the deadline of the collectives, how long a rank still waits for the verdict before it declares a loss."""

LoadOwned = Callable[[Sequence[int]], Sequence[bool]]
"""Load these chunks into their buffers; per chunk, is the buffer now whole? May raise."""

Arrived = Callable[[int], None]
"""This chunk's buffer is filled now. Must not raise: the other ranks go on."""


class ShardedLoad:
    """One rank's end of the group. Not thread-safe: loads are collective, so they come in one order on all ranks."""

    def __init__(self, group: dist.ProcessGroup, store: dist.Store, rank: int, world: int) -> None:
        self._group = group
        self._store = store
        self._rank = rank
        self._world = world
        self._loads = 0
        self._lost = False

    def load(
        self,
        request_id: str,
        chunk_hashes: Sequence[bytes],
        buffers: Sequence[torch.Tensor],
        load_owned: LoadOwned,
        timeout_s: float,
        *,
        first: int = 0,
        arrived: Arrived | None = None,
    ) -> Agreement:
        """Fill `buffers` (one a chunk, the same shape on all ranks) up to the agreed prefix, on every rank.

        The load may begin in the middle of a prompt: `first` is its first chunk's number there, which decides who owns
        what. Chunks are numbered from 0 in everything that is handed over. A buffer is taken from `buffers` when its turn
        comes, and `arrived` is called when it is filled, so one may serve for all chunks.

        All ranks must call with the same request and chunks (checked), within `timeout_s` of each other. Chunks beyond
        the agreed prefix must not be used, whatever their buffers hold. An error of `load_owned` is raised after this
        rank has taken part in every collective that the others enter.
        """
        if self._lost:
            return Agreement(0, LoadOutcome.GROUP_LOST)
        planned = len(chunk_hashes)
        turn = (self._rank - first) % self._world
        owned = owned_chunks(turn, self._world, planned)
        print_of_list = fingerprint(request_id, self._world, chunk_hashes)
        report = RankReport(self._rank, reach(turn, self._world, 0, planned), print_of_list)
        deadline = time.monotonic() + timeout_s
        try:
            held = found_in_a_row(load_owned(owned))
            report = RankReport(self._rank, reach(turn, self._world, held, planned), print_of_list)
        finally:
            agreement = self._take_part(report, planned, buffers, deadline, first, arrived or _nothing)
        return agreement

    def _take_part(
        self,
        report: RankReport,
        planned: int,
        buffers: Sequence[torch.Tensor],
        deadline: float,
        first: int,
        arrived: Arrived,
    ) -> Agreement:
        if self._world == 1:
            return agree([report], planned)
        self._loads += 1
        try:
            agreement = agree(self._exchange(report, deadline), planned)
            for chunk in range(agreement.chunks):
                self._broadcast(buffers[chunk], owner_of(first + chunk, self._world), deadline)
                arrived(chunk)
            usable = self._verdict(deadline)
        except RuntimeError:  # torch raises it for a peer that closed its connection and for a wait that timed out
            usable = self._declare_lost()
        if usable:
            return agreement
        self._lost = True
        return Agreement(0, LoadOutcome.RANK_LOST)

    def _exchange(self, report: RankReport, deadline: float) -> list[RankReport]:
        mine = torch.frombuffer(bytearray(report.encode()), dtype=torch.uint8)
        everyone = [torch.empty(REPORT_BYTES, dtype=torch.uint8) for _ in range(self._world)]
        _wait(self._group.allgather([everyone], [mine]), deadline)
        return [RankReport.decode(bytes(each.tolist())) for each in everyone]

    def _broadcast(self, buffer: torch.Tensor, source: int, deadline: float) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = source
        options.rootTensor = 0
        _wait(self._group.broadcast([buffer], options), deadline)

    def _verdict(self, deadline: float) -> bool:
        """Say that this rank is done, and wait until all are, or one has declared the load lost."""
        key = f"{self._loads}"
        if self._store.add(f"{key}/done", 1) == self._world:
            self._store.compare_set(f"{key}/verdict", "", "usable")
        if self._rank == 0 and self._loads > 1:  # every rank has read the last verdict: all have begun this load
            for ended in ("done", "verdict"):
                self._store.delete_key(f"{self._loads - 1}/{ended}")
        self._store.wait([f"{key}/verdict"], timedelta(seconds=max(deadline - time.monotonic(), 0.0) + VERDICT_GRACE_S))
        return bool(self._store.get(f"{key}/verdict") != LOST.encode())

    def _declare_lost(self) -> bool:
        """Settle the load as lost unless a verdict stands; the verdict that stands. A store that is gone took the rank
        that held it along, so that nobody can read another verdict."""
        try:
            return bool(self._store.compare_set(f"{self._loads}/verdict", "", LOST) != LOST.encode())
        except RuntimeError:
            return False


def _nothing(_: int) -> None:
    """Nobody asked to be told."""


def _wait(work: dist.Work, deadline: float) -> None:
    """Raises RuntimeError when a peer is gone or the deadline passes."""
    work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
