"""Where the prompt leaves the thinking open: what vLLM's own structured output code then lets a model write, token by token,
under our grammar and without any reasoning parser, which is how workers are deployed (ADR 0408)."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prime_inference.toolcalls.choice import read_choice
from prime_inference.toolcalls.compiler import TagCompiler
from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.door import admit
from prime_inference.toolcalls.suite.cases import function
from prime_inference.toolcalls.tags import Thinking
from tests.conformance.toolcalls.conftest import ROOT, Door, Frontend

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

UNIT = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
CALL = "<tool_call>set<arg_key>unit</arg_key><arg_value>C</arg_value></tool_call>"
WRONG_CALL = "<tool_call>set<arg_key>unit</arg_key><arg_value>K</arg_value></tool_call>"
ENGINE_WITHIN_S = 300


async def written_by(model: Path, compiler: TagCompiler, how: tuple[str, Thinking], answers: list[str]) -> list[Any]:
    """`how`: vLLM's reasoning parser, and what the grammar begins with."""
    parser, thinking = how
    declared = declare([function("set", UNIT)])
    choice = read_choice("required", declared.tools)
    grammar = (await admit(compiler, declared, choice, thinking=thinking)).grammar
    script = Path(__file__).with_name("vllm_gate.py")
    done = await asyncio.to_thread(
        subprocess.run,
        (sys.executable, "-W", "ignore", str(script), str(model), parser),
        input=json.dumps({"grammar": grammar, "prompt": "hi<think>", "answers": answers}),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=ENGINE_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.slow
async def test_vllm_holds_the_answer_to_the_grammar_after_the_models_own_end_of_thinking(
    model_folder: Path, compiler: TagCompiler
) -> None:
    answers = ["hm", f"hm</think>{CALL}", f"hm{CALL}", f"hm</think>{WRONG_CALL}", "hm </arg_key> hm</think><arg_key>"]
    seen = await written_by(model_folder, compiler, ("none", Thinking.IN_TAG), answers)
    assert seen[0] == {"written": "hm", "may_end": False}, "the turn must not end within the thinking: a call is owed"
    assert seen[1] == {"written": f"hm</think>{CALL}", "may_end": True}
    assert seen[2]["written"] == "hm", "a call within the thinking would never be executed"
    assert seen[3]["written"].endswith("<arg_value>")
    assert seen[4] == {"written": "hm </arg_key> hm</think>", "may_end": False}


@pytest.mark.slow
async def test_vllms_own_gate_would_let_a_turn_end_in_its_thinking_and_start_the_grammar_behind_a_call(
    model_folder: Path, compiler: TagCompiler
) -> None:
    """Why no reasoning parser is deployed. Should a release of vLLM change this, the choice can be made again."""
    seen = await written_by(model_folder, compiler, ("glm45", Thinking.BY_ENGINE), ["hm", f"hm{CALL}"])
    assert seen[0] == {"written": "hm", "may_end": True}
    assert seen[1]["written"] == "hm<tool_call>"


async def test_the_engine_gets_the_thinking_in_the_grammar_and_a_format_behind_it(
    door: Door, raw_frontend: Frontend
) -> None:
    async def grammar_for(**fields: Any) -> Any:
        body = {"model": "glm", "messages": [{"role": "user", "content": "x"}], **fields}
        async with door.running.session.post(f"{door.url}/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
        return json.loads(raw_frontend.tags_file.read_text().splitlines()[-1])

    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string as takes

    tools = [function("set", UNIT)]
    grammar = xgrammar.Grammar.from_ebnf((await grammar_for(tools=tools))["grammar"])
    for text, right in (
        (f"hm</think>{CALL}", True),
        (f"</think>{CALL}", True),
        (CALL, False),
        ("hm", False),
        ("hm</think>none", True),
        (f"hm{CALL}</think>{CALL}", False),
    ):
        assert takes(grammar, text) is right, text
    closed = {"chat_template_kwargs": {"enable_thinking": False}}
    grammar = xgrammar.Grammar.from_ebnf((await grammar_for(tools=tools, **closed))["grammar"])
    assert takes(grammar, CALL)
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {**UNIT, "additionalProperties": False}}}
    grammar = xgrammar.Grammar.from_ebnf((await grammar_for(response_format=wanted))["grammar"])
    assert takes(grammar, 'hm</think>{"unit": "C"}')
    assert not takes(grammar, '{"unit": "C"}')
    assert not takes(grammar, 'hm</think>{"unit": "K"}')
    assert "grammar" not in await grammar_for(response_format=wanted, **closed)
    for fields, before in (({}, "hm</think>"), (closed, "")):
        both = await grammar_for(response_format=wanted, tools=tools, **fields)
        grammar = xgrammar.Grammar.from_ebnf(both["grammar"])
        for text, right in (
            ('{"unit": "C"}', True),
            (CALL, True),
            (f"{CALL}{CALL}", True),
            ('{"unit": "K"}', False),
            (f'{{"unit": "C"}}{CALL}', False),
            ("none", False),
        ):
            assert takes(grammar, before + text) is right, text
        must = await grammar_for(response_format=wanted, tools=tools, tool_choice="required", **fields)
        assert not takes(xgrammar.Grammar.from_ebnf(must["grammar"]), before + '{"unit": "C"}')
