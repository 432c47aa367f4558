"""How many chunks of a prompt can be used: the longest prefix of which every chunk is held by its owner. Pure.

Each rank answers with its *reach*: the first of its owned chunks that it lacks, or the whole prompt if it lacks none.
The usable prefix is the smallest reach. A rank that found nothing reaches its first owned chunk, not 0: rank 3 without
any chunk still lets chunks 0, 1 and 2 be used. A rank that owns no chunk of a short prompt never limits it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prime_inference.kv.sharding.ownership import owned_chunks


def reach(rank: int, world: int, found_in_a_row: int, chunks: int) -> int:
    """The reach of a rank that holds its first `found_in_a_row` owned chunks and lacks the next (if there is one)."""
    return min(rank + found_in_a_row * world, chunks)


def found_in_a_row(held: Iterable[bool]) -> int:
    """How many of a rank's owned chunks, from its first on, are held without a gap."""
    count = 0
    for each in held:
        if not each:
            break
        count += 1
    return count


def usable_prefix(reaches: Sequence[int]) -> int:
    """Chunks that can be used, given every rank's reach."""
    return min(reaches)


class LookupOutcome(StrEnum):
    AGREED = "agreed"
    """Every rank that could have limited the prefix has answered."""
    DEADLINE = "deadline"
    """Some ranks were silent until the deadline; they count as having found nothing."""


@dataclass(frozen=True)
class LookupResult:
    chunks: int
    outcome: LookupOutcome


class PrefixLookup:
    """The usable prefix from answers that arrive one by one, in any order.

    Owned by the scheduler's side of the connector, which asks `result` at every step and never waits.
    """

    def __init__(self, world: int, chunks: int, deadline: float) -> None:
        self._world = world
        self._chunks = chunks
        self._deadline = deadline
        self._silent = {rank for rank in range(world) if owned_chunks(rank, world, chunks)}
        self._smallest_reach = chunks

    def report(self, rank: int, found: int) -> None:
        """`rank` holds its first `found` owned chunks in a row. A second answer of the same rank changes nothing."""
        if rank in self._silent:
            self._silent.remove(rank)
            self._smallest_reach = min(self._smallest_reach, reach(rank, self._world, found, self._chunks))

    def result(self, now: float) -> LookupResult | None:
        """The usable prefix, or None while a rank that could still shorten it has time to answer."""
        could_shorten = [
            rank for rank in self._silent if reach(rank, self._world, 0, self._chunks) < self._smallest_reach
        ]
        if not could_shorten:
            return LookupResult(self._smallest_reach, LookupOutcome.AGREED)
        if now < self._deadline:
            return None
        return LookupResult(min(could_shorten), LookupOutcome.DEADLINE)
