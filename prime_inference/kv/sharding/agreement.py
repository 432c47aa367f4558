"""What the ranks of a load tell each other before they broadcast, and what follows from it. Pure.

Every rank sends one report of fixed size and receives all of them, so every rank computes the same agreement. A miss
or an error shortens the prefix for all alike; a difference in the chunk list (two ranks at different requests, or
with different hashes) ends the load for all alike.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

FINGERPRINT_BYTES = 16
"""128 bits: two different chunk lists agree by chance never in practice, and a report stays within one packet."""

_REPORT = struct.Struct(f"<ii{FINGERPRINT_BYTES}s")

REPORT_BYTES = _REPORT.size


class LoadOutcome(StrEnum):
    LOADED = "loaded"
    """All chunks that were planned are there on every rank."""
    SHORTENED = "shortened"
    """A rank could not read a chunk that its lookup had found; the prefix ends there on every rank."""
    LISTS_DIFFER = "lists_differ"
    """The ranks were not loading the same chunks. Nothing is broadcast, nothing is used."""
    RANK_LOST = "rank_lost"
    """A rank died or stalled past the deadline. Nothing is used, on any rank, and the group is not used again."""
    GROUP_LOST = "group_lost"
    """The group had lost a rank before; nothing was tried."""


@dataclass(frozen=True)
class RankReport:
    """`reach`: the first owned chunk that this rank could not load, or the number planned. See prefix.py."""

    rank: int
    reach: int
    fingerprint: bytes

    def encode(self) -> bytes:
        return _REPORT.pack(self.rank, self.reach, self.fingerprint)

    @classmethod
    def decode(cls, raw: bytes) -> "RankReport":
        return cls(*_REPORT.unpack(raw))


@dataclass(frozen=True)
class Agreement:
    """`chunks` are broadcast, each by its owner, in order."""

    chunks: int
    outcome: LoadOutcome


def fingerprint(request_id: str, world: int, chunk_hashes: Sequence[bytes]) -> bytes:
    """FINGERPRINT_BYTES over the request, the world and the chunks in order. Lengths are hashed too, so that no two
    different inputs run together."""
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    for part in (request_id.encode(), str(world).encode(), *chunk_hashes):
        digest.update(struct.pack("<q", len(part)) + part)
    return digest.digest()


def agree(reports: Sequence[RankReport], planned_chunks: int) -> Agreement:
    """The same on every rank, since it depends on nothing but all ranks' reports in rank order."""
    if len({report.fingerprint for report in reports}) > 1:
        return Agreement(0, LoadOutcome.LISTS_DIFFER)
    chunks = min(report.reach for report in reports)
    return Agreement(chunks, LoadOutcome.LOADED if chunks == planned_chunks else LoadOutcome.SHORTENED)
