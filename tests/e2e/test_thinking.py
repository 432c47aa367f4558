"""A model that thinks, served as GLM is deployed: no parser at Dynamo, none at vLLM, a grammar that begins with the thinking,
and the gateway as the one reader. A stack of its own, beside the shared one.

SmolLM2 was never taught to close its thinking; `logit_bias` makes it want to. What follows `</think>` is its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from prime_inference.local.model import find_model
from prime_inference.local.options import DEFAULT_MODEL
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NEEDED_BYTES = 9_000_000_000
WEAK_BIAS = 22
"""Of a token that the model has never seen: enough for it to be drawn after some words."""
UNIT = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "n": {"type": "boolean"}},
    "required": ["unit", "n"],
}
TOOL = {"type": "function", "function": {"name": "set", "parameters": UNIT}}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, int]]:
    """The stack, and the id of `</think>`."""
    if psutil.virtual_memory().available < NEEDED_BYTES:
        pytest.skip("too little memory for a second stack")
    folder = tmp_path_factory.mktemp("thinking")
    script = Path(__file__).with_name("thinking_model.py")
    source = find_model(DEFAULT_MODEL, lambda _: None).path
    made = subprocess.run(
        (sys.executable, str(script), str(source), str(folder / "model")), capture_output=True, text=True, check=True
    )
    with running_stack(folder / "state", "--model", str(folder / "model"), within_s=600) as stack:
        yield stack, int(made.stdout.split()[-1])


def ask(stack: Stack, **fields: Any) -> dict[str, Any]:
    body = {
        "model": stack.model,
        "messages": [{"role": "user", "content": "Celsius, please."}],
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 120,
        **fields,
    }
    body = {name: value for name, value in body.items() if value is not None}
    with stack.client(120) as client:
        response = client.post("/chat/completions", json=body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def call_in(choice: dict[str, Any]) -> dict[str, Any]:
    assert choice["finish_reason"] == "tool_calls", choice
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "set"
    arguments: dict[str, Any] = json.loads(call["function"]["arguments"])
    assert arguments["unit"] in ("C", "F")
    assert isinstance(arguments["n"], bool)
    return arguments


def test_the_worker_is_the_one_that_is_deployed(thinking: tuple[Stack, int]) -> None:
    stack, _ = thinking
    leader = psutil.Process(stack.pid_of("decode-0"))
    family = [leader, *leader.children(recursive=True)]
    command = next(line for process in family if "--disaggregation-mode" in (line := process.cmdline()))
    assert command[command.index("--dyn-structural-tag") + 1] == "false"
    assert not {"--reasoning-parser", "--dyn-tool-call-parser", "--dyn-reasoning-parser"} & set(command)


def test_with_the_thinking_closed_by_the_request_the_grammar_holds_from_the_first_token(
    thinking: tuple[Stack, int],
) -> None:
    choice = ask(thinking[0], chat_template_kwargs={"enable_thinking": False})
    call_in(choice)
    assert not choice["message"].get("reasoning_content")


@pytest.mark.parametrize("bias", [100, WEAK_BIAS], ids=["at once", "after some words"])
def test_the_grammar_holds_after_the_models_own_end_of_thinking(thinking: tuple[Stack, int], bias: float) -> None:
    stack, end_of_thinking = thinking
    thought = 0
    for seed in range(3):
        choice = ask(stack, logit_bias={str(end_of_thinking): bias}, seed=seed, temperature=0.7, max_tokens=400)
        call_in(choice)
        assert not choice["message"]["content"]
        thought += len(choice["message"].get("reasoning_content") or "")
    assert (thought > 0) is (bias == WEAK_BIAS)


def test_the_turn_does_not_end_and_no_call_is_begun_within_the_thinking(thinking: tuple[Stack, int]) -> None:
    """Nothing keeps the model from its end of turn but the grammar: without it this prompt ends after a few words."""
    for seed in range(2):
        choice = ask(thinking[0], max_tokens=40, seed=seed, temperature=0.7)
        assert choice["finish_reason"] == "length"
        assert choice["message"]["reasoning_content"]
        assert "<tool_call>" not in choice["message"]["reasoning_content"]
        assert not choice["message"].get("tool_calls")
        assert not choice["message"]["content"]


def test_a_format_is_held_behind_the_thinking(thinking: tuple[Stack, int]) -> None:
    stack, end_of_thinking = thinking
    wanted = {"type": "json_schema", "json_schema": {"name": "unit", "schema": UNIT}}
    bias = {str(end_of_thinking): WEAK_BIAS}
    choice = ask(stack, tools=None, tool_choice=None, response_format=wanted, logit_bias=bias, max_tokens=400)
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"])["unit"] in ("C", "F")
