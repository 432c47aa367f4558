"""Each process killed or stopped in turn: a clear error meanwhile, and the service heals by itself."""

import re
import signal
import time

import httpx
import pytest

from tests.support.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.faults]

HEALED_WITHIN_S = 60.0

AT_REST_WITHIN_S = 90.0
"""A breaker that opened four times within a minute waits up to 48 s for its probe."""


def wait_until_at_rest(stack: Stack) -> None:
    """What an earlier test broke may have left the breaker open, and is no part of the next."""
    stack.until(
        lambda: stack.metric("gateway", "prime_gateway_breaker_state", state="closed") == 1,
        AT_REST_WITHIN_S,
        "the breaker closed",
    )


def statuses_until_healed(stack: Stack, dead: int, name: str) -> list[int]:
    """What requests get from the kill until the process is back and a request goes through; 0 for no connection."""
    statuses: list[int] = []

    def healed() -> bool:
        try:
            statuses.append(stack.chat(timeout_s=20).status_code)
        except httpx.TransportError:
            statuses.append(0)
        back = re.findall(rf"^{name}: ready \(pid (\d+)\)", stack.text(), re.MULTILINE)
        return statuses[-1] == 200 and int(back[-1]) != dead

    stack.until(healed, HEALED_WITHIN_S, f"{name} healed")
    return statuses


@pytest.mark.parametrize("name", ["decode-0", "prefill-0", "frontend", "valkey"])
def test_a_killed_process_is_started_again_and_requests_meanwhile_get_a_clear_answer(
    mocker_stack: Stack, name: str
) -> None:
    dead = mocker_stack.kill(name)
    statuses = statuses_until_healed(mocker_stack, dead, name)
    assert set(statuses) <= {200, 429, 503}, statuses


def test_a_killed_gateway_is_started_again(mocker_stack: Stack) -> None:
    dead = mocker_stack.kill("gateway")
    statuses = statuses_until_healed(mocker_stack, dead, "gateway")
    assert set(statuses) <= {0, 200, 503}, statuses


def test_no_request_fails_while_one_of_two_decode_workers_is_away(mocker_stack: Stack) -> None:
    wait_until_at_rest(mocker_stack)
    dead = mocker_stack.kill("decode-1")
    statuses = statuses_until_healed(mocker_stack, dead, "decode-1")
    assert set(statuses) == {200}, statuses


def test_a_worker_stalled_for_fifteen_seconds_serves_again(mocker_stack: Stack) -> None:
    """Ten seconds are Dynamo's time to live for a file key; past it the worker would be forgotten for good."""
    for name in ("decode-0", "decode-1", "prefill-0"):
        mocker_stack.kill(name, signal.SIGSTOP)
    try:
        time.sleep(15)
    finally:
        for name in ("decode-0", "decode-1", "prefill-0"):
            mocker_stack.kill(name, signal.SIGCONT)
    mocker_stack.until(mocker_stack.answers, 10, "served again")
    health = httpx.get(f"{mocker_stack.running['frontend_url']}/health").json()
    generating = [entry["component"] for entry in health["instances"] if entry["endpoint"] == "generate"]
    assert sorted(generating) == ["backend", "backend", "prefill"]
