"""A model that thinks, served as GLM is deployed: no parser at Dynamo, vLLM's `--reasoning-parser glm45` as the gate of the
grammar, and the gateway as the one reader. A stack of its own, beside the shared one."""

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
END_OF_TURN = 2
"""SmolLM2's `<|im_end|>`."""
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
    assert command[command.index("--reasoning-parser") + 1] == "glm45"
    assert not {"--dyn-tool-call-parser", "--dyn-reasoning-parser"} & set(command)


def test_with_the_thinking_closed_by_the_request_the_grammar_holds_from_the_first_token(
    thinking: tuple[Stack, int],
) -> None:
    choice = ask(thinking[0], chat_template_kwargs={"enable_thinking": False})
    call_in(choice)
    assert not choice["message"].get("reasoning_content")


def test_while_the_model_thinks_the_grammar_waits_and_the_text_is_thinking(thinking: tuple[Stack, int]) -> None:
    choice = ask(thinking[0], max_tokens=12, logit_bias={str(END_OF_TURN): -100})
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning_content"]
    assert not choice["message"]["reasoning_content"].startswith("<tool_call>")
    assert not choice["message"].get("tool_calls")
    assert not choice["message"]["content"]
