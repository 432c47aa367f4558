"""A client that leaves frees the decode worker."""

import json
import socket
from typing import Any

import pytest

from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

LONG_TOKENS = 2000
"""Some 90 s of decode on a CPU: a worker that is free within 5 s did not come to the end by itself."""


def story(model: str, *, stream: bool) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me a very long story about the sea."}],
        "max_tokens": LONG_TOKENS,
        "min_tokens": LONG_TOKENS,
        "stream": stream,
    }


def test_leaving_in_the_middle_of_a_stream_ends_it_on_the_decode_worker(real_stack: Stack) -> None:
    with (
        real_stack.client() as client,
        client.stream("POST", "/chat/completions", json=story(real_stack.model, stream=True)) as response,
    ):
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
    # A socket of our own: the client leaves when the decode worker has the request, however long prefill took.
    body = json.dumps(story(real_stack.model, stream=False)).encode()
    head = (
        f"POST /api/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {real_stack.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", real_stack.port), timeout=10) as leaving:
        leaving.sendall(head.encode() + body)
        real_stack.until(
            lambda: real_stack.metric("decode-0", "vllm:num_requests_running") == 1,
            30,
            "the request reached the decode worker",
        )
        leaving.setblocking(False)
        with pytest.raises(BlockingIOError):  # no byte of an answer yet
            leaving.recv(1)
    real_stack.until(
        lambda: real_stack.metric("decode-0", "vllm:num_requests_running") == 0, 5, "the request left the decode worker"
    )
    assert real_stack.answers()
