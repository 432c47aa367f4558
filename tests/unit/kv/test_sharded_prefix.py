"""Three ways to the same number: all answers at once, answers one by one, and the definition itself."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.sharding.ownership import owned_chunks, owner_of
from prime_inference.kv.sharding.prefix import (
    LookupOutcome,
    LookupResult,
    PrefixLookup,
    found_in_a_row,
    reach,
    usable_prefix,
)

PATTERNS_PER_WORLD = 400
WORLDS = range(1, 17)


def brute_force(held: list[bool]) -> int:
    """Chunk by chunk from the start, ask its owner, stop at the first that is not there."""
    for chunk, here in enumerate(held):
        if not here:
            return chunk
    return len(held)


def answers(held: list[bool], world: int) -> list[int]:
    """What each rank finds in its own chunks, in a row."""
    return [found_in_a_row(held[chunk] for chunk in owned_chunks(rank, world, len(held))) for rank in range(world)]


def at_once(held: list[bool], world: int) -> int:
    return usable_prefix([reach(rank, world, found, len(held)) for rank, found in enumerate(answers(held, world))])


def one_by_one(held: list[bool], world: int, draw: random.Random) -> int:
    lookup = PrefixLookup(world, len(held), deadline=1.0)
    order = list(enumerate(answers(held, world)))
    draw.shuffle(order)
    early: LookupResult | None = None
    for rank, found in order:
        result = lookup.result(now=0.0)
        # Once told, it must not change with later answers.
        assert early is None or result == early
        early = result
        lookup.report(rank, found)
    result = lookup.result(now=0.0)
    assert result is not None
    assert early is None or result == early
    assert result.outcome is LookupOutcome.AGREED
    return result.chunks


@pytest.mark.parametrize("world", WORLDS)
def test_at_once_and_one_by_one_are_the_definition(world: int) -> None:
    """6,400 presence patterns in all: of every length, mostly held, with holes or cut off, some with nothing."""
    draw = random.Random(world)
    for _ in range(PATTERNS_PER_WORLD):
        chunks = draw.randrange(0, 4 * world + 3)
        density = draw.choice([0.0, 0.5, 0.9, 0.99, 1.0])
        held = [draw.random() < density for _ in range(chunks)]
        if draw.random() < 0.3:
            held = [chunk < draw.randrange(chunks + 1) for chunk in range(chunks)]
        expected = brute_force(held)
        assert at_once(held, world) == expected
        assert one_by_one(held, world, draw) == expected


@given(st.lists(st.booleans(), max_size=70), st.integers(1, 16), st.randoms(use_true_random=False))
def test_any_pattern_at_all(held: list[bool], world: int, draw: random.Random) -> None:
    assert at_once(held, world) == one_by_one(held, world, draw) == brute_force(held)


def test_a_rank_that_found_nothing_reaches_its_first_owned_chunk_and_not_zero() -> None:
    assert [reach(rank, 4, 0, 10) for rank in range(4)] == [0, 1, 2, 3]
    held = [True, True, True, False] * 2
    assert at_once(held, 4) == 3


def test_a_rank_without_chunks_of_a_short_prompt_never_limits_it() -> None:
    assert at_once([True, True], 8) == 2
    lookup = PrefixLookup(8, 2, deadline=1.0)
    lookup.report(0, 1)
    lookup.report(1, 1)
    assert lookup.result(now=0.0) == LookupResult(2, LookupOutcome.AGREED)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 16), st.data())
def test_silent_ranks_count_as_having_found_nothing_and_only_after_the_deadline(
    held: list[bool], world: int, data: st.DataObject
) -> None:
    silent = data.draw(st.sets(st.integers(0, world - 1)))
    lookup = PrefixLookup(world, len(held), deadline=1.0)
    for rank, found in enumerate(answers(held, world)):
        if rank not in silent:
            lookup.report(rank, found)
    seen = [here and owner_of(chunk, world) not in silent for chunk, here in enumerate(held)]
    before, after = lookup.result(now=0.999), lookup.result(now=1.0)
    assert after is not None
    assert after.chunks == brute_force(seen)
    assert before is None or before == after
    # It waits exactly when an answer could still lengthen what it would say now.
    assert (before is None) == (after.outcome is LookupOutcome.DEADLINE)


def test_a_rank_that_answers_twice_is_heard_once() -> None:
    lookup = PrefixLookup(2, 4, deadline=1.0)
    lookup.report(0, 2)
    lookup.report(0, 0)
    lookup.report(1, 2)
    assert lookup.result(now=0.0) == LookupResult(4, LookupOutcome.AGREED)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("chunks", [1, 7, 64, 1000])
def test_every_chunk_has_one_owner_and_the_work_is_even_to_one_chunk(world: int, chunks: int) -> None:
    shares = [owned_chunks(rank, world, chunks) for rank in range(world)]
    assert sorted(chunk for share in shares for chunk in share) == list(range(chunks))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(owner_of(chunk, world) == rank for rank, share in enumerate(shares) for chunk in share)


def test_store_work_of_a_long_prompt_is_within_five_percent_of_even() -> None:
    for world in WORLDS:
        shares = [len(owned_chunks(rank, world, 512)) for rank in range(world)]
        assert max(shares) / (512 / world) < 1.05
