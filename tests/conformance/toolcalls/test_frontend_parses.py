"""Workers as `Parsing.FRONTEND` sets them, for who calls a frontend that no gateway of ours reads for: `glm47` and `glm45` in
the real Dynamo frontend, and its structural tags. The gateway before it has `format: engine`: it passes and judges."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import xgrammar
from xgrammar.testing import _is_grammar_accept_string as takes

from prime_inference.toolcalls.suite.cases import canned_messages, function
from tests.conformance.toolcalls.conftest import Frontend
from tests.support.gateway import RunningGateway, gateway

pytestmark = pytest.mark.slow

in_session_loop = pytest.mark.asyncio(loop_scope="session")

TOOLS = [
    function("set", {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}),
    function("now", {"type": "object", "properties": {}}),
]
CALL = "<tool_call>set<arg_key>unit</arg_key><arg_value>C</arg_value></tool_call>"
NAMED = {"type": "function", "function": {"name": "set"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def passing(
    parsing_frontend: Frontend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("passing")
    async with gateway(folder, [parsing_frontend.url], model="glm", tools={"format": "engine"}) as running:
        yield running


async def ask(running: RunningGateway, text: str, **fields: Any) -> Any:
    body = {"model": "glm", "messages": list(canned_messages(text, 0, "stop")), "tools": TOOLS, **fields}
    async with running.session.post(f"{running.url}/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["choices"][0]


@in_session_loop
@pytest.mark.parametrize(
    ("choice", "refused"),
    [("auto", "<tool_call>nope</tool_call>"), ("required", "no call"), (NAMED, "<tool_call>now</tool_call>")],
    ids=["auto", "required", "named"],
)
async def test_every_request_with_tools_is_held_to_a_tag_of_glms_form(
    passing: RunningGateway, parsing_frontend: Frontend, choice: Any, refused: str
) -> None:
    await ask(passing, f"hm</think>{CALL}", tool_choice=choice)
    guided = json.loads(parsing_frontend.tags_file.read_text().splitlines()[-1])
    tag = guided["structural_tag"]
    grammar = xgrammar.Grammar.from_structural_tag(tag if isinstance(tag, str) else json.dumps(tag))
    accepted = [text for text in (CALL, f"hm</think>{CALL}") if takes(grammar, text)]
    assert accepted, guided
    before = accepted[0].removesuffix(CALL)
    assert not takes(grammar, before + refused)
    assert not takes(grammar, before + CALL.replace(">C<", ">K<"))


@in_session_loop
async def test_both_parsers_read_a_plain_call_and_the_gateway_judges_it(passing: RunningGateway) -> None:
    before = passing.metric("prime_gateway_tool_calls_total", model="glm", verdict="Ok")
    choice = await ask(passing, f"hm</think>{CALL}")
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("set", {"unit": "C"})
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"].strip() == "hm"
    assert passing.metric("prime_gateway_tool_calls_total", model="glm", verdict="Ok") == before + 1
