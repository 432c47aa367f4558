"""Turn 2 of a session comes back to the decode worker of turn 1, through the real gateway and Dynamo router."""

from collections.abc import Callable

import pytest

from tests.support.stack import Stack

DECODERS = ("decode-0", "decode-1")
HANDLED = "dynamo_component_requests_total"
SESSIONS = 5
MOST_SESSIONS = 40
"""Equal workers are chosen by chance: five sessions may all have met one of them, forty will not."""


def handled(stack: Stack) -> dict[str, float]:
    return {name: stack.metric(name, HANDLED, dynamo_endpoint="generate") for name in DECODERS}


def workers_of(stack: Stack, send: Callable[[int], None], turns: int = 3) -> list[str]:
    """Which decode worker handled each turn. A worker counts a request a moment after its answer has gone out."""
    chosen = []
    for turn in range(turns):
        before = handled(stack)
        send(turn)
        stack.until(lambda before=before: sum(handled(stack).values()) > sum(before.values()), 5, "counted")  # type: ignore[misc]
        after = handled(stack)
        chosen += [name for name in DECODERS if after[name] > before[name]]
    return chosen


NAMED = {
    "body session_id": lambda session: ({"session_id": session}, {}),
    "x-session-id": lambda session: ({}, {"x-session-id": session}),
    "prompt_cache_key": lambda session: ({"prompt_cache_key": session}, {}),
    "opening messages": lambda session: ({}, {}),
}


@pytest.mark.parametrize("how", NAMED)
def test_every_turn_of_a_session_meets_the_same_decode_worker(mocker_stack: Stack, how: str) -> None:
    seen: set[str] = set()
    for session in range(MOST_SESSIONS):
        if session >= SESSIONS and seen == set(DECODERS):
            break
        fields, headers = NAMED[how](f"{how} {session}")
        messages = [{"role": "user", "content": f"{how}: session {session}"}]

        def send(turn: int, fields=fields, headers=headers, messages=messages) -> None:  # type: ignore[no-untyped-def]
            body = {"model": mocker_stack.model, "messages": messages, "max_tokens": 3, **fields}
            with mocker_stack.client() as client:
                answer = client.post("/chat/completions", json=body, headers=headers).raise_for_status().json()
            messages.append(answer["choices"][0]["message"])
            messages.append({"role": "user", "content": f"turn {turn}"})

        chosen = workers_of(mocker_stack, send)
        assert len(chosen) == 3
        assert len(set(chosen)) == 1
        seen |= set(chosen)
    assert seen == set(DECODERS), "sessions must spread, or the test proves nothing"
