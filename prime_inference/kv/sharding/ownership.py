"""Chunk c belongs to rank c mod W: known to all without a word, and even to within one chunk."""


def owner_of(chunk: int, world: int) -> int:
    return chunk % world


def owned_chunks(rank: int, world: int, chunks: int) -> range:
    """The chunks of a prompt of `chunks` chunks that `rank` stores, looks up and loads, in order."""
    return range(rank, chunks, world)
