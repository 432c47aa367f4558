"""What a rank's server is asked for, and what its answer means in the real prompt."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.sharding.ownership import owned_chunks, owner_of
from prime_inference.kv.sharding.shard_client import ShardClient
from prime_inference.kv.sharding.shard_prompt import chunk_digests, owned_below, shard_prompt

CHUNK = 16
WORLDS = range(1, 17)


@dataclass(frozen=True)
class Key:
    """The fields of LMCache's key that are translated."""

    token_ids: tuple[int, ...]
    start: int
    end: int
    request_id: str = "r"


@dataclass
class Future:
    value: object

    def query(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def result(self, timeout: float | None = None) -> Any:
        return self.value


@dataclass
class Server:
    """As LMCache's: a chunk is known by all tokens up to its end; a lookup finds and locks the longest prefix."""

    chunks: set[tuple[int, ...]] = field(default_factory=set)
    found: dict[str, int] = field(default_factory=dict)
    locked: list[tuple[int, ...]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def names(self, key: Key) -> list[tuple[int, ...]]:
        return [key.token_ids[: at + CHUNK] for at in range(key.start, key.end, CHUNK)]

    def lookup(self, key: Key, readers: int) -> Future:
        held = []
        for name in self.names(key):
            if name not in self.chunks:
                break
            held.append(name)
        self.locked += held
        self.found[key.request_id] = len(held)
        return Future(None)

    def query_prefetch_status(self, request_id: str) -> Future:
        return Future(self.found.pop(request_id, 0))

    def free_lookup_locks(self, key: Key, readers: int) -> Future:
        for name in self.names(key):
            self.locked.remove(name)  # raises for one that is not locked
        return Future(None)

    def end_session(self, request_id: str) -> Future:
        self.ended.append(request_id)
        return Future(None)


def tokens_of(chunks: int, more: int = 0) -> tuple[int, ...]:
    return tuple(range(1, chunks * CHUNK + more + 1))


def servers_with(held: list[bool], world: int, tokens: tuple[int, ...]) -> list[Server]:
    servers = [Server() for _ in range(world)]
    for chunk, here in enumerate(held):
        if here:
            rank = owner_of(chunk, world)
            own = shard_prompt(tokens, CHUNK, rank, world)
            servers[rank].chunks.add(tuple(own[: (owned_below(chunk, rank, world) + 1) * CHUNK]))
    return servers


@pytest.mark.parametrize("world", WORLDS)
def test_the_smallest_answer_of_all_servers_is_the_prefix_that_every_owner_holds(world: int) -> None:
    """As LMCache's scheduler asks: 200 patterns a world. And every lock that it takes is released, once."""
    draw = random.Random(world)
    for _ in range(200):
        chunks = draw.randrange(0, 3 * world + 3)
        density = draw.choice((0.0, 0.5, 0.9, 1.0))
        held = [draw.random() < density for _ in range(chunks)]
        tokens = tokens_of(chunks, more=draw.randrange(CHUNK))
        servers = servers_with(held, world, tokens)
        clients = [ShardClient(server, rank, world, CHUNK, Future) for rank, server in enumerate(servers)]
        key = Key(tokens, 0, chunks * CHUNK)
        for client in clients:
            client.lookup(key, 1)
        answers = [client.query_prefetch_status("r").result() for client in clients]
        usable = next((chunk for chunk, here in enumerate(held) if not here), chunks)
        assert min(answers, default=0) == usable
        for client, answer in zip(clients, answers, strict=True):
            if answer > usable:
                client.free_lookup_locks(Key(tokens, usable * CHUNK, answer * CHUNK), 1)
        begun = draw.randrange(usable + 1)  # the engine has these itself, the rest is loaded
        for client in clients:
            client.free_lookup_locks(Key(tokens, 0, begun * CHUNK), 1)
        for rank, server in enumerate(servers):
            assert len(server.locked) == owned_below(usable, rank, world) - owned_below(begun, rank, world)


@given(chunks=st.integers(0, 40), world=st.integers(1, 16), rank=st.integers(0, 15))
def test_a_ranks_prompt_has_its_owned_chunks_and_grows_with_the_real_one(chunks: int, world: int, rank: int) -> None:
    rank %= world
    whole = shard_prompt(tokens_of(chunks, more=3), CHUNK, rank, world)
    assert len(whole) == CHUNK * len(owned_chunks(rank, world, chunks))
    before = shard_prompt(tokens_of(max(0, chunks - 1)), CHUNK, rank, world)
    assert whole[: len(before)] == before
    assert all(0 <= token < 2**31 for token in whole)


@given(chunks=st.integers(1, 12), changed=st.integers(0, 11), world=st.integers(1, 4))
def test_another_token_anywhere_before_changes_every_later_chunk(chunks: int, changed: int, world: int) -> None:
    changed %= chunks
    other = list(tokens_of(chunks))
    other[changed * CHUNK + 5] += 1
    first, second = chunk_digests(tokens_of(chunks), CHUNK), chunk_digests(tuple(other), CHUNK)
    assert [one == two for one, two in zip(first, second, strict=True)] == [at < changed for at in range(chunks)]
    for rank in range(world):
        ours, theirs = (shard_prompt(each, CHUNK, rank, world) for each in (tokens_of(chunks), other))
        same = owned_below(changed, rank, world) * CHUNK
        assert ours[:same] == theirs[:same]
        for at in range(same, len(ours), CHUNK):
            assert ours[at : at + CHUNK] != theirs[at : at + CHUNK]


def test_stored_chunks_are_spread_evenly() -> None:
    """Within 5 % of even for prompts of 64 chunks and more: ranks differ by one chunk at most."""
    for world in WORLDS:
        counts = [len(owned_chunks(rank, world, 400)) for rank in range(world)]
        assert max(counts) - min(counts) <= 1
        assert max(counts) <= 1.05 * 400 / world


def test_a_status_that_is_not_known_yet_stays_so_and_a_finished_request_is_forgotten() -> None:
    server = Server()
    client = ShardClient(server, 0, 2, CHUNK, Future)
    client.lookup(Key(tokens_of(4), 0, 4 * CHUNK), 1)
    server.found["r"] = None  # type: ignore[assignment]
    assert client.query_prefetch_status("r").result() is None
    client.end_session("r")
    assert server.ended == ["r"]
    assert client._asked == {}
