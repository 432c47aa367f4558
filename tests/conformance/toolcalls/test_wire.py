"""The wire suite through the gateway and the real Dynamo frontend, which leaves the text raw."""

import json
from dataclasses import replace

import pytest

from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.glm import encode
from prime_inference.toolcalls.strict_json import spell
from prime_inference.toolcalls.suite.cases import Case, Expected, canned_messages, function
from prime_inference.toolcalls.suite.generate import generate
from prime_inference.toolcalls.suite.run import STEPS, run_cases
from prime_inference.toolcalls.suite.wire import CUT, TEXTS, THOUGHT, wire_cases
from tests.conformance.toolcalls.conftest import Door, Frontend

pytestmark = pytest.mark.slow

in_session_loop = pytest.mark.asyncio(loop_scope="session")
FEWER_STEPS = (1, 3)
"""One token at a time, and a step that leaves markers in the middle."""


@in_session_loop
async def test_every_wire_case_comes_back_right_whole_and_for_every_cut_of_the_stream(door: Door) -> None:
    cases = list(wire_cases(each=1))
    run = await run_cases(door.url, "glm", cases, door.headers, concurrency=4, steps=FEWER_STEPS)
    assert run.not_run == {}
    assert len(run.results) == len(cases) * (1 + len(FEWER_STEPS))
    assert [(result.id, result.way, result.problems) for result in run.results if not result.passed] == []


@pytest.mark.slow
@in_session_loop
async def test_every_wire_case_and_every_generated_call_comes_back_right_for_every_step(door: Door) -> None:
    cases = list(wire_cases())
    run = await run_cases(door.url, "glm", cases, door.headers, concurrency=4)
    assert len(run.results) == len(cases) * (1 + len(STEPS))
    assert [(result.id, result.way, result.problems) for result in run.results if not result.passed] == []


@in_session_loop
async def test_the_engine_gets_the_grammar_in_the_very_configuration_that_leaves_the_text_raw(
    door: Door, raw_frontend: Frontend
) -> None:
    before = len(raw_frontend.tags_file.read_text().splitlines()) if raw_frontend.tags_file.exists() else 0
    cases = [case for case in wire_cases() if case.id == "wire.ref-object"]
    await run_cases(door.url, "glm", cases, door.headers, concurrency=1)
    guided = [json.loads(line) for line in raw_frontend.tags_file.read_text().splitlines()[before + 1 :]]
    assert len(guided) == 1 + len(STEPS)
    assert {tuple(one) for one in guided} == {("grammar", "prompt")}
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string as takes

    grammar = xgrammar.Grammar.from_ebnf(guided[0]["grammar"])
    for text, right in (
        ('<tool_call>typed<arg_key>o</arg_key><arg_value>{"city": "x"}</arg_value></tool_call>', True),
        ("<tool_call>typed<arg_key>o</arg_key><arg_value>{}</arg_value></tool_call>", False),
        ("<tool_call>nope</tool_call>", False),
        ("text with </tool_call> in it", False),
    ):
        assert takes(grammar, THOUGHT + text) is right, text


@in_session_loop
async def test_the_engine_may_not_pad_a_raw_value_and_may_write_either_form(door: Door, raw_frontend: Frontend) -> None:
    unit = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    body = {"model": "glm", "messages": [{"role": "user", "content": "x"}], "tools": [function("set", unit)]}
    async with door.running.session.post(f"{door.url}/chat/completions", json=body) as response:
        assert response.status == 200
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string as takes

    guided = json.loads(raw_frontend.tags_file.read_text().splitlines()[-1])
    grammar = xgrammar.Grammar.from_ebnf(guided["grammar"])
    for value, right in (("C", True), ("C\n", False), (" C", False)):
        for between in ("", "\n"):
            pair = f"{between}<arg_key>unit</arg_key>{between}<arg_value>{value}</arg_value>{between}"
            assert takes(grammar, f"{THOUGHT}<tool_call>set{pair}</tool_call>") is right


@in_session_loop
async def test_a_request_with_128_tools_is_enforced_and_its_last_tool_called(door: Door) -> None:
    samples = list(generate(32, seed=8))
    tools = tuple(function(f"tool_{n}", samples[n % 32].parameters) for n in range(128))
    tool = declare(tools).tools["tool_127"]
    arguments = samples[127 % 32].right[0]
    text = THOUGHT + encode("tool_127", arguments, tool)
    expected = Expected((("tool_127", spell(arguments)),))
    case = Case("many", "wire", "", tools, canned_messages(text, 0, "stop"), expected=expected, canned=text)
    run = await run_cases(door.url, "glm", [case], door.headers, concurrency=1, steps=(3,))
    assert [result.problems for result in run.results] == [(), ()]


@in_session_loop
async def test_calls_are_counted_by_what_they_are_worth(door: Door) -> None:
    before = door.running.metric("prime_gateway_tool_calls_total", model="glm", verdict="Ok")
    case = next(case for case in wire_cases() if case.id == "wire.ref-object")
    await run_cases(door.url, "glm", [case], door.headers, concurrency=1, steps=(1,))
    assert door.running.metric("prime_gateway_tool_calls_total", model="glm", verdict="Ok") == before + 2


@in_session_loop
async def test_a_strict_tool_with_optional_keys_is_served_and_enforced(door: Door, raw_frontend: Frontend) -> None:
    case = next(case for case in wire_cases() if case.id == "wire.ref-object")
    strict = tuple({**tool, "function": {**tool["function"], "strict": True}} for tool in case.tools)
    run = await run_cases(door.url, "glm", [replace(case, tools=strict)], door.headers, concurrency=1, steps=(1,))
    assert [result.problems for result in run.results] == [(), ()]
    guided = json.loads(raw_frontend.tags_file.read_text().splitlines()[-1])
    assert '"typed"' in guided["grammar"]


def test_case_ids_are_unique_and_every_hand_made_case_names_its_source() -> None:
    ids = [case.id for case in wire_cases()]
    assert len(ids) == len(set(ids))
    assert all(source for _, source, _, _ in (*TEXTS, *CUT))
