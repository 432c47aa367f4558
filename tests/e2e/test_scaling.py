"""Real workers come, go and are replaced under load: vLLM, NIXL and Dynamo, clients that never retry."""

import asyncio

import httpx
import pytest

from prime_inference.health.canary import Ending, ending_of
from prime_inference.health.canary_client import ask, pairs
from tests.local.test_changes import told
from tests.support.load import Load, load
from tests.support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

STARTED_WITHIN_S = 400.0
"""Another engine beside the two that compute on the same cores."""
ANSWERED_WITHIN_S = 240.0
"""Two answers, on a machine that has other work, too."""
HEALED_WITHIN_S = 240.0
"""Twice the longest time that an open breaker waits for its next probe."""


@pytest.fixture(autouse=True)
def well(real_stack: Stack) -> None:
    """What tests before broke is whole again: one that only asks for an answer may have had an open breaker's trickle."""

    def closed() -> bool:
        return real_stack.metric("gateway", "prime_gateway_breaker_state", state="closed") == 1.0

    real_stack.until(closed, HEALED_WITHIN_S, "the breaker closed")


def canary_of_every_pair(stack: Stack) -> list[Ending]:
    """Each asked once, all held against the first one's answer."""
    with httpx.Client(base_url=stack.running["frontend_url"]) as client:
        answers = [(pair, ask(client, stack.model, pair, 120)) for pair in pairs(client)]
    assert answers[0][1].text
    return [ending_of(pair, answer, answers[0][1].text) for pair, answer in answers]


async def two_more_answers(running: Load) -> None:
    alone = running.whole
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        while running.whole < alone + 2:
            await asyncio.sleep(0.1)


async def test_a_second_decode_worker_comes_takes_requests_and_leaves_without_a_failed_one(real_stack: Stack) -> None:
    before = set(real_stack.running["worker_urls"])
    async with load(real_stack.url, real_stack.key, real_stack.model, clients=2, tokens=16) as running:
        await asyncio.sleep(1)
        assert await told(real_stack, "scale", "--decode", "2", within_s=STARTED_WITHIN_S) == "1 prefill, 2 decode"
        (name,) = set(real_stack.running["worker_urls"]) - before
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            while real_stack.metric(name, "vllm:request_success_total") < 2:
                await asyncio.sleep(0.5)
        endings = await asyncio.to_thread(canary_of_every_pair, real_stack)
        assert endings == [Ending.RIGHT] * 2, "the new one's tokens are the former's"
        assert await told(real_stack, "scale", "--decode", "1") == "1 prefill, 1 decode"
        await two_more_answers(running)
    print(f"{running.whole} whole answers, {len(running.failed)} failed, the longest took {running.longest_s:.1f} s")
    assert running.failed == []
    assert set(real_stack.running["worker_urls"]) == before


@pytest.mark.live
@pytest.mark.parametrize("pool", ["decode", "prefill"])
async def test_a_real_worker_is_replaced_by_its_successor_without_a_failed_request(
    real_stack: Stack, pool: str
) -> None:
    former = {name for name in real_stack.running["worker_urls"] if name.startswith(pool)}
    async with load(real_stack.url, real_stack.key, real_stack.model, clients=2, tokens=16) as running:
        await asyncio.sleep(1)
        said = await told(real_stack, "restart", pool, within_s=STARTED_WITHIN_S)
        await two_more_answers(running)
    print(f"{said}: {running.whole} whole answers, {running.failed}, the longest took {running.longest_s:.1f} s")
    assert running.failed == []
    assert former.isdisjoint(real_stack.running["worker_urls"])
