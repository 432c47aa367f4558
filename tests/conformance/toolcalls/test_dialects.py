"""Every wire case through `/responses` and `/messages`, whole and streamed, read by the real SDKs: what comes back is what chat
completions give for the same text. The real Dynamo frontend and the real grammar compiler stand behind."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from gateway.dialects.messages_answer import STOP_REASONS
from prime_inference.toolcalls.suite.cases import Case, ToolEntry, canned_messages
from prime_inference.toolcalls.suite.run import same_json
from prime_inference.toolcalls.suite.wire import wire_cases
from prime_inference.toolcalls.verdict import Verdict
from tests.conformance.toolcalls.conftest import Door
from tests.support.gateway import KEY

pytestmark = pytest.mark.slow

in_session_loop = pytest.mark.asyncio(loop_scope="session")
TOKENS_A_STEP = 3
STATUS = {"tool_calls": "completed", "stop": "completed", "length": "incomplete"}
MUST_BE_JSON = (anthropic.APIStatusError, anthropic.APIError, ValueError)


@dataclass
class Clients:
    chat: openai.AsyncOpenAI
    claude: anthropic.AsyncAnthropic


@pytest_asyncio.fixture(loop_scope="session")
async def clients(door: Door) -> AsyncIterator[Clients]:
    async with (
        openai.AsyncOpenAI(base_url=door.url, api_key=KEY, max_retries=0) as chat,
        anthropic.AsyncAnthropic(base_url=door.url.removesuffix("/v1"), api_key=KEY, max_retries=0) as claude,
    ):
        yield Clients(chat, claude)


def prompt(case: Case, step: int = TOKENS_A_STEP) -> str:
    return str(canned_messages(case.canned or "", step, case.canned_finish)[0]["content"])


def for_responses(tool: ToolEntry) -> dict[str, Any]:
    return {"type": "function", **tool["function"]}


def for_messages(tool: ToolEntry) -> dict[str, Any]:
    one = tool["function"]
    kept = {key: one[key] for key in ("name", "description", "strict") if key in one}
    return {**kept, "input_schema": one.get("parameters") or {"type": "object", "properties": {}}}


def response_request(case: Case) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "glm", "input": prompt(case), "tools": [for_responses(t) for t in case.tools]}
    choice = case.tool_choice
    return {**body, "tool_choice": {"type": "function", **choice["function"]} if isinstance(choice, dict) else choice}


def message_request(case: Case) -> dict[str, Any]:
    names = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
    choice = case.tool_choice
    choice = {"type": "tool", "name": choice["function"]["name"]} if isinstance(choice, dict) else names[choice]
    turns = [{"role": "user", "content": prompt(case)}]
    return {"model": "glm", "max_tokens": 4096, "messages": turns, "tools": [for_messages(t) for t in case.tools],
            "tool_choice": choice}  # fmt: skip


@dataclass
class Seen:
    content: str
    calls: list[tuple[str, str]]
    ended: str | None
    ids: list[str]


def in_response(response: Any) -> Seen:
    calls = [item for item in response.output if item.type == "function_call"]
    parts = [part for item in response.output if item.type == "message" for part in item.content]
    assert all(item.status in ("completed", "incomplete") for item in response.output)
    return Seen(
        "".join(part.text for part in parts),
        [(call.name, call.arguments) for call in calls],
        response.status,
        [call.call_id for call in calls],
    )


def in_message(message: Any) -> Seen:
    calls = [block for block in message.content if block.type == "tool_use"]
    return Seen(
        "".join(block.text for block in message.content if block.type == "text"),
        [(call.name, json.dumps(call.input)) for call in calls],
        message.stop_reason,
        [call.id for call in calls],
    )


async def streamed_response(clients: Clients, case: Case) -> Seen:
    """Put together by the SDK, and again from the events' own deltas, which must say the same."""
    arguments: dict[str, str] = {}
    texts: list[str] = []
    sequence: list[int] = []
    async with clients.chat.responses.stream(**response_request(case)) as stream:
        async for event in stream:
            sequence.append(event.sequence_number)
            if event.type == "response.function_call_arguments.delta":
                arguments[event.item_id] = arguments.get(event.item_id, "") + event.delta
            elif event.type == "response.function_call_arguments.done":
                assert event.arguments == arguments.get(event.item_id, "")
            elif event.type == "response.output_text.delta":
                texts.append(event.delta)
            elif event.type in ("response.completed", "response.incomplete"):
                last = event.response
    assert sequence == list(range(len(sequence)))
    seen = in_response(last)
    assert seen.content == "".join(texts)
    assert last.usage.total_tokens == last.usage.input_tokens + last.usage.output_tokens > 0
    return seen


async def streamed_message(clients: Clients, case: Case) -> Seen:
    async with clients.claude.messages.stream(**message_request(case)) as stream:
        message = await stream.get_final_message()
    assert message.usage.output_tokens > 0
    assert message.usage.input_tokens > 0
    return in_message(message)


def same(case: Case, seen: Seen, ended: dict[str, str]) -> list[str]:
    wanted = case.expected
    assert wanted is not None
    problems = []
    if seen.content != wanted.content:
        problems.append(f"content {seen.content!r}, not {wanted.content!r}")
    if [name for name, _ in seen.calls] != [name for name, _ in wanted.calls]:
        problems.append(f"calls {seen.calls}, not {wanted.calls}")
    elif not all(same_json(got, want) for (_, got), (_, want) in zip(seen.calls, wanted.calls, strict=True)):
        problems.append(f"arguments {seen.calls}, not {wanted.calls}")
    if seen.ended != ended[wanted.finish_reason]:
        problems.append(f"ended {seen.ended!r}, not {ended[wanted.finish_reason]!r}")
    if len(set(seen.ids)) != len(seen.ids) or not all(seen.ids):
        problems.append(f"ids {seen.ids}")
    return problems


def carried_by_messages(case: Case) -> bool:
    """`input` is a JSON object there: numbers lose their spelling, and what is not JSON has no place."""
    wanted = case.expected
    assert wanted is not None
    return Verdict.INVALID_JSON not in wanted.verdicts and all(
        same_json(json.dumps(json.loads(arguments)), arguments) for _, arguments in wanted.calls
    )


@in_session_loop
async def test_every_wire_case_is_the_same_in_responses(clients: Clients) -> None:
    problems: dict[str, list[str]] = {}
    turn = asyncio.Semaphore(4)

    async def one(case: Case) -> None:
        async with turn:
            whole = in_response(await clients.chat.responses.create(**response_request(case)))
            streamed = await streamed_response(clients, case)
        if found := same(case, whole, STATUS) + same(case, streamed, STATUS):
            problems[case.id] = found

    cases = [case for case in wire_cases(each=1) if case.expected is not None]
    await asyncio.gather(*map(one, cases))
    assert len(cases) > 90
    assert problems == {}


@in_session_loop
async def test_every_wire_case_is_the_same_in_messages(clients: Clients) -> None:
    problems: dict[str, list[str]] = {}
    turn = asyncio.Semaphore(4)

    async def one(case: Case) -> None:
        async with turn:
            whole = in_message(await clients.claude.messages.create(**message_request(case)))
            streamed = await streamed_message(clients, case)
        if found := same(case, whole, STOP_REASONS) + same(case, streamed, STOP_REASONS):
            problems[case.id] = found

    cases = [case for case in wire_cases(each=1) if case.expected is not None and carried_by_messages(case)]
    await asyncio.gather(*map(one, cases))
    assert len(cases) > 80
    assert problems == {}
