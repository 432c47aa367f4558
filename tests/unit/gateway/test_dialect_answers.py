"""The events and objects that are made of chat chunks: their order and shape, and that streamed and whole are one."""

import json
from typing import Any

import msgspec
import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from gateway.dialects.editor import DialectEditor
from gateway.dialects.messages_answer import MessagesWriter
from gateway.dialects.responses_answer import ResponsesWriter
from gateway.dialects.responses_request import ToolNames
from gateway.dialects.writer import Unspeakable, Writer, whole_answer
from gateway.relay.stream import StreamEditor, StreamEnd, UpstreamErrorEvent

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"n": 5}'}}
OTHER = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}}
USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 6}}
DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "h"},
    {"reasoning_content": "m"},
    {"content": "I "},
    {"content": "look."},
    {"tool_calls": [CALL, OTHER]},
]


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "created": 1,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}  # fmt: skip


def sse(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def events_of(data: bytes) -> list[dict[str, Any]]:
    events = []
    for one in data.decode().split("\n\n")[:-1]:
        kind, body = one.split("\n")
        parsed = json.loads(body.removeprefix("data: "))
        assert kind == f"event: {parsed['type']}"
        events.append(parsed)
    return events


def responses(names: ToolNames | None = None) -> ResponsesWriter:
    return ResponsesWriter({"model": "m", "temperature": 0.5, "metadata": {"k": "v"}}, names or ToolNames())


def streamed(writer: Writer, deltas: list[dict[str, Any]], finish: str = "tool_calls") -> list[dict[str, Any]]:
    editor = DialectEditor(StreamEditor(forward_usage=True), writer)
    out = b"".join(editor.feed(sse(chunk(delta))) for delta in deltas)
    out += editor.feed(sse(chunk({}, finish))) + editor.feed(sse({**chunk({}), "choices": [], "usage": USAGE}))
    out += editor.feed(b"data: [DONE]\n\n")
    assert editor.ending is StreamEnd.COMPLETE
    assert editor.closed
    assert editor.usage is not None
    assert editor.usage.total_tokens == 14
    return events_of(out)


def test_a_responses_stream_has_the_events_of_reasoning_message_and_calls_in_their_order() -> None:
    events = streamed(responses(), DELTAS)
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    Response.model_validate(last)
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == last["output"]
    assert last["output"][2]["call_id"] == "call_1"
    assert last["usage"]["input_tokens_details"]["cached_tokens"] == 6
    assert (last["temperature"], last["metadata"], last["status"]) == (0.5, {"k": "v"}, "completed")


def test_a_messages_stream_has_the_blocks_of_thinking_text_and_calls_in_their_order() -> None:
    events = streamed(MessagesWriter("m"), DELTAS)
    block = ("content_block_start", "content_block_delta", "content_block_stop")
    kinds = [event["type"] for event in events]
    assert kinds == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *block,
        *block,
        *("message_delta", "message_stop"),
    ]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta"] * 2 + ["text_delta"] * 2 + ["input_json_delta"] * 2
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["input_tokens"] == 4
    assert events[-2]["usage"]["cache_read_input_tokens"] == 6


def test_whole_and_streamed_answers_hold_the_same() -> None:
    message = {"role": "assistant", "reasoning_content": "hm", "content": "I look.", "tool_calls": [CALL, OTHER]}
    body = {"id": "c", "object": "chat.completion", "usage": USAGE,
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}  # fmt: skip
    whole = json.loads(whole_answer(msgspec.json.encode(body), responses()))
    Response.model_validate(whole)
    last = streamed(responses(), DELTAS)[-1]["response"]
    for mine, other in zip(whole["output"], last["output"], strict=True):
        assert {**mine, "id": ""} == {**other, "id": ""}
    answer = Message.model_validate_json(whole_answer(msgspec.json.encode(body), MessagesWriter("m")))
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.content[2].input == {"n": 5}  # type: ignore[union-attr]
    assert answer.content[2].id == "toolu_1"  # type: ignore[union-attr]
    assert answer.usage.output_tokens == 4


def test_a_cut_answer_is_incomplete() -> None:
    events = streamed(responses(), [{"content": "I "}], "length")
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"
    assert streamed(MessagesWriter("m"), [{"content": "I "}], "length")[-2]["delta"]["stop_reason"] == "max_tokens"


def test_a_custom_tools_input_is_the_models_text_and_a_namespaces_function_has_its_own_name() -> None:
    names = ToolNames(custom={"patch"}, spaces={"mcp__git__log": ("mcp__git", "log")})
    text = '*** say "x" &amp; </y>\n'
    patch = {**CALL, "function": {"name": "patch", "arguments": json.dumps({"input": text})}}
    log = {**OTHER, "function": {"name": "mcp__git__log", "arguments": "{}"}}
    events = streamed(responses(names), [{"tool_calls": [patch, log]}])
    first, second = events[-1]["response"]["output"]
    assert (first["type"], first["name"], first["input"]) == ("custom_tool_call", "patch", text)
    assert (second["name"], second["namespace"]) == ("log", "mcp__git")
    delta, done = [event for event in events if "custom_tool_call_input" in event["type"]]
    assert (delta["delta"], done["input"]) == (text, text)


@pytest.mark.parametrize("writer", [responses(), MessagesWriter("m")], ids=["responses", "messages"])
def test_an_error_is_the_dialects_own_event_and_nothing_follows_it(writer: Writer) -> None:
    editor = DialectEditor(StreamEditor(forward_usage=True), writer)
    editor.feed(sse(chunk({"content": "I "})))
    events = events_of(editor.fail(UpstreamErrorEvent(504, "too late"), StreamEnd.TRUNCATED))
    assert [event["type"] for event in events] == ["error"]
    assert editor.error is not None
    assert (editor.error.status, editor.ending) == (504, StreamEnd.TRUNCATED)
    assert editor.feed(sse(chunk({"content": "more"}))) == b""
    assert editor.end() == b""


def test_a_stream_that_just_ends_is_an_error_in_either_dialect() -> None:
    editor = DialectEditor(StreamEditor(forward_usage=True), MessagesWriter("m"))
    editor.feed(sse(chunk({"content": "I "})))
    (event,) = events_of(editor.end())
    assert event["error"]["message"].startswith("the stream ended before")


def test_arguments_that_are_no_object_have_no_place_in_messages_and_are_said_to_be_wrong() -> None:
    broken = {**CALL, "function": {"name": "f", "arguments": "<arg_key>n"}}
    editor = DialectEditor(StreamEditor(forward_usage=True), MessagesWriter("m"))
    editor.feed(sse(chunk({"tool_calls": [broken]})))
    editor.feed(sse(chunk({}, "tool_calls")))
    events = events_of(editor.feed(b"data: [DONE]\n\n"))
    assert [event["type"] for event in events] == ["error"]
    assert editor.ending is StreamEnd.MODEL_ERROR
    body = {"choices": [{"message": {"tool_calls": [broken]}, "finish_reason": "tool_calls"}]}
    with pytest.raises(Unspeakable):
        whole_answer(msgspec.json.encode(body), MessagesWriter("m"))


PIECES = st.lists(
    st.one_of(
        st.builds(lambda text: {"content": text}, st.text(max_size=4)),
        st.builds(lambda text: {"reasoning_content": text}, st.text(max_size=4)),
        st.builds(lambda n: {"call": json.dumps({"n": n})}, st.integers()),
    ),
    max_size=8,
)


@given(PIECES)
def test_nothing_of_any_answer_is_lost_or_reordered_in_either_dialect(pieces: list[dict[str, Any]]) -> None:
    calls = 0
    deltas, wanted = [], []
    for piece in pieces:
        if "call" in piece:
            entry = {
                **CALL,
                "index": calls,
                "id": f"call_{calls}",
                "function": {"name": "f", "arguments": piece["call"]},
            }
            calls += 1
            deltas.append({"tool_calls": [entry]})
            wanted.append(("call", piece["call"]))
            continue
        deltas.append(piece)
        ((kind, text),) = piece.items()
        if text and wanted and wanted[-1][0] == kind:
            wanted[-1] = (kind, wanted[-1][1] + text)
        elif text:
            wanted.append((kind, text))
    writer, claude = responses(), MessagesWriter("m")
    streamed(writer, deltas)
    streamed(claude, deltas)
    kinds = {"reasoning": "reasoning_content", "message": "content", "thinking": "reasoning_content", "text": "content"}
    assert [
        ("call", item["arguments"])
        if item["type"] == "function_call"
        else (kinds[item["type"]], item["content"][0]["text"])
        for item in writer.result()["output"]
    ] == wanted
    assert [
        ("call", json.dumps(block["input"]))
        if block["type"] == "tool_use"
        else (kinds[block["type"]], block[block["type"]])
        for block in claude.result()["content"]
    ] == wanted
