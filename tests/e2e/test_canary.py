"""The canary against real workers: it reaches the pair it names, and makes it transfer every time."""

import httpx
import pytest

from prime_inference.health.canary import Ending, ending_of
from prime_inference.health.canary_client import ask, pairs
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e


def test_the_canary_makes_a_pair_transfer_and_gets_the_same_tokens_each_time(real_stack: Stack) -> None:
    def transfers() -> float:
        return real_stack.metric("decode-0", "vllm:nixl_xfer_time_seconds_count")

    with httpx.Client(base_url=real_stack.running["frontend_url"]) as client:
        (pair,) = pairs(client)
        before = transfers()
        answers = [ask(client, real_stack.model, pair, 120) for _ in range(3)]
    assert [ending_of(pair, answer, answers[0].text) for answer in answers] == [Ending.RIGHT] * 3, answers
    assert answers[0].text
    # vLLM writes its metrics after the step that ended the request.
    real_stack.until(lambda: transfers() - before >= 3, 30, "three transfers")
