"""Running streams share a turn of the event loop in the order in which they came, and leave the rest of it to others."""

import asyncio

from gateway.relay.turns import LEAST_A_TURN, SHARE_A_TURN, Turns


class Stream:
    def __init__(self, number: int, served: list[int]) -> None:
        self._number = number
        self._served = served

    def serve(self) -> None:
        self._served.append(self._number)


async def served_by_turn(turns: Turns, served: list[int], wanted: int) -> list[int]:
    """How many had been served after each turn of the loop."""
    counts = []
    while len(served) < wanted:
        await asyncio.sleep(0)
        counts.append(len(served))
    return counts


async def test_a_turn_serves_a_bounded_number_in_the_order_in_which_they_came() -> None:
    turns, served = Turns(), list[int]()
    for number in range(3 * LEAST_A_TURN):
        turns.add(Stream(number, served))
    assert await served_by_turn(turns, served, 3 * LEAST_A_TURN) == [LEAST_A_TURN, 2 * LEAST_A_TURN, 3 * LEAST_A_TURN]
    assert served == sorted(served)


async def test_of_many_that_wait_a_share_is_served() -> None:
    turns, served, many = Turns(), list[int](), 10 * SHARE_A_TURN * LEAST_A_TURN
    for number in range(many):
        turns.add(Stream(number, served))
    counts = await served_by_turn(turns, served, many)
    assert counts[0] == many // SHARE_A_TURN
    assert served == sorted(served)


async def test_who_comes_while_others_are_served_has_the_next_turn() -> None:
    turns, served = Turns(), list[int]()
    last = Stream(2, served)

    class Adds(Stream):
        def serve(self) -> None:
            super().serve()
            turns.add(last)

    turns.add(Adds(1, served))
    await asyncio.sleep(0)
    assert served == [1]
    await asyncio.sleep(0)
    assert served == [1, 2]


async def test_nothing_runs_while_nobody_waits() -> None:
    turns, served = Turns(), list[int]()
    turns.add(Stream(1, served))
    await served_by_turn(turns, served, 1)
    turns.add(Stream(2, served))
    assert await served_by_turn(turns, served, 2) == [2]
