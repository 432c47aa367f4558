"""A real decode worker comes and goes under load: vLLM, NIXL and Dynamo, clients that never retry."""

import asyncio

import pytest

from tests.local.test_changes import told
from tests.support.load import load
from tests.support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.slow]


async def test_a_second_decode_worker_comes_takes_requests_and_leaves_without_a_failed_one(real_stack: Stack) -> None:
    before = set(real_stack.running["worker_urls"])
    async with load(real_stack.url, real_stack.key, real_stack.model, clients=2, tokens=16) as running:
        await asyncio.sleep(1)
        assert await told(real_stack, "scale", "--decode", "2") == "1 prefill, 2 decode"
        (name,) = set(real_stack.running["worker_urls"]) - before
        async with asyncio.timeout(60):
            while real_stack.metric(name, "vllm:request_success_total") < 2:
                await asyncio.sleep(0.5)
        assert await told(real_stack, "scale", "--decode", "1") == "1 prefill, 1 decode"
        alone = running.whole
        async with asyncio.timeout(60):
            while running.whole < alone + 2:
                await asyncio.sleep(0.1)
    print(f"{running.whole} whole answers, {len(running.failed)} failed, the longest took {running.longest_s:.1f} s")
    assert running.failed == []
    assert set(real_stack.running["worker_urls"]) == before
