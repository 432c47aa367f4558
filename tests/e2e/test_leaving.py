"""A client that leaves frees the decode worker."""

import threading

import httpx
import pytest

from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

LEAVES_AFTER_S = 1.5
"""Longer than prefill and transfer, shorter than a story of some sixty tokens takes on a CPU."""


def test_leaving_in_the_middle_of_a_stream_ends_it_on_the_decode_worker(real_stack: Stack) -> None:
    body = {
        "model": real_stack.model,
        "messages": [{"role": "user", "content": "Tell me a very long story about the sea."}],
        "max_tokens": 2000,
        "stream": True,
    }
    with real_stack.client() as client, client.stream("POST", "/chat/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(6):
            next(lines)
        running = real_stack.metric("decode-0", "vllm:num_requests_running")
    assert running == 1
    took = real_stack.until(
        lambda: real_stack.metric("decode-0", "vllm:num_requests_running") == 0, 5, "the request left the decode worker"
    )
    assert took < 5
    assert real_stack.metric("gateway", "prime_gateway_in_flight_requests") == 0


def test_leaving_before_the_answer_begins_ends_a_unary_request(real_stack: Stack) -> None:
    def ask() -> None:
        with pytest.raises(httpx.ReadTimeout):
            real_stack.chat("Tell me a very long story about the sea.", timeout_s=LEAVES_AFTER_S, max_tokens=2000)

    leaving = threading.Thread(target=ask)
    leaving.start()
    real_stack.until(
        lambda: real_stack.metric("decode-0", "vllm:num_requests_running") == 1,
        5,
        "the request reached the decode worker",
    )
    leaving.join()
    real_stack.until(
        lambda: real_stack.metric("decode-0", "vllm:num_requests_running") == 0, 5, "the request left the decode worker"
    )
    assert real_stack.answers()
