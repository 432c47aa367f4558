"""A model that thinks, served as GLM is deployed: no parser at Dynamo, none at vLLM, a grammar that begins with the thinking,
and the gateway as the one reader. A stack of its own, beside the shared one.

SmolLM2 was never taught to think: its `</think>` is as likely as a full stop."""

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
ANSWERED_WITHIN_S = 300
"""400 tokens on two cores that others use, too."""
UNIT = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "n": {"type": "boolean"}},
    "required": ["unit", "n"],
}
TOOL = {"type": "function", "function": {"name": "set", "parameters": UNIT}}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if psutil.virtual_memory().available < NEEDED_BYTES:
        pytest.skip("too little memory for a second stack")
    folder = tmp_path_factory.mktemp("thinking")
    script = Path(__file__).with_name("thinking_model.py")
    source = find_model(DEFAULT_MODEL, lambda _: None).path
    subprocess.run(
        (sys.executable, str(script), str(source), str(folder / "model")), capture_output=True, text=True, check=True
    )
    with running_stack(folder / "state", "--model", str(folder / "model"), within_s=600) as stack:
        yield stack


def ask(stack: Stack, **fields: Any) -> dict[str, Any]:
    body = {
        "model": stack.model,
        "messages": [{"role": "user", "content": "Celsius, please."}],
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 200,
        **fields,
    }
    body = {name: value for name, value in body.items() if value is not None}
    with stack.client(ANSWERED_WITHIN_S) as client:
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


def test_the_worker_is_the_one_that_is_deployed(thinking: Stack) -> None:
    leader = psutil.Process(thinking.pid_of("decode-0"))
    family = [leader, *leader.children(recursive=True)]
    command = next(line for process in family if "--disaggregation-mode" in (line := process.cmdline()))
    assert command[command.index("--dyn-structural-tag") + 1] == "false"
    assert not {"--reasoning-parser", "--dyn-tool-call-parser", "--dyn-reasoning-parser"} & set(command)


def test_with_the_thinking_closed_by_the_request_the_grammar_holds_from_the_first_token(thinking: Stack) -> None:
    choice = ask(thinking, chat_template_kwargs={"enable_thinking": False})
    call_in(choice)
    assert not choice["message"].get("reasoning_content")


def test_the_grammar_holds_after_the_models_own_end_of_thinking(thinking: Stack) -> None:
    """Nothing but the grammar keeps the model from its end of turn, or from anything else than a call."""
    called, thoughts = 0, ""
    for seed in range(4):
        choice = ask(thinking, seed=seed, temperature=0.7)
        thoughts += choice["message"].get("reasoning_content") or ""
        assert not choice["message"]["content"]
        if choice["finish_reason"] == "length":
            assert not choice["message"].get("tool_calls")
        else:
            call_in(choice)
            called += 1
    assert called > 0
    assert thoughts
    assert "<tool_call>" not in thoughts


def test_a_format_is_held_behind_the_thinking(thinking: Stack) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "unit", "schema": {**UNIT, "additionalProperties": False}}}
    answered = 0
    for seed in range(3):
        choice = ask(thinking, tools=None, tool_choice=None, response_format=wanted, seed=seed, temperature=0.7)
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"])["unit"] in ("C", "F")
            answered += 1
    assert answered > 0
