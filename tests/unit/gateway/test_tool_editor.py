"""A stream of raw text through the editor that parses and judges, event by event."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gateway.relay.stream import StreamEnd
from gateway.toolcalls.books import Books
from gateway.toolcalls.editor import ToolStreamEditor
from gateway.toolcalls.metrics import ToolMetrics
from prime_inference.toolcalls.choice import read_choice
from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.raw import RawStream

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}},
    },
}
_PAIRS = "<arg_key>q</arg_key><arg_value>a &lt; b</arg_value><arg_key>n</arg_key><arg_value>3</arg_value>"
CALL = f"<tool_call>find{_PAIRS}</tool_call>"
DONE = b"data: [DONE]\n\n"


class Case:
    def __init__(self, choice: Any = "auto", parsed_here: bool = True, forward_usage: bool = True) -> None:
        declared = declare([TOOL])
        read = read_choice(choice, declared.tools)
        self.registry = CollectorRegistry()
        books = Books(ToolMetrics(self.registry), "m", declared, read)
        raw = RawStream(declared, read, iter("abcdefgh").__next__, thinking=False) if parsed_here else None
        self.editor = ToolStreamEditor(forward_usage=forward_usage, raw=raw, books=books)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"prime_gateway_tool_{name}_total", {"model": "m", **labels}) or 0.0


def event(content: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    if content is not None:
        delta["content"] = content
    chunk = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}\n\n'


def chunks(sent: bytes) -> list[dict[str, Any]]:
    return [json.loads(part[6:]) for part in sent.split(b"\n\n") if part and part != DONE[:-2]]


def deltas(sent: bytes) -> list[dict[str, Any]]:
    return [choice for chunk in chunks(sent) for choice in chunk["choices"]]


def run(case: Case, *events: bytes) -> bytes:
    return b"".join(map(case.editor.feed, (*events, DONE)))


def test_a_call_leaves_whole_and_the_answer_ends_in_tool_calls() -> None:
    case = Case()
    sent = run(case, event(role="assistant"), *(event(char) for char in CALL), event(finish="stop"), USAGE)
    calls = [call for choice in deltas(sent) for call in choice["delta"].get("tool_calls", ())]
    assert [(c["index"], c["id"], c["function"]["name"]) for c in calls] == [(0, "a", "find")]
    assert json.loads(calls[0]["function"]["arguments"]) == {"q": "a &lt; b", "n": 3}
    assert deltas(sent)[-1]["finish_reason"] == "tool_calls"
    assert chunks(sent)[-1]["usage"]["completion_tokens"] == 5
    assert sent.endswith(DONE)
    assert case.editor.ending is StreamEnd.COMPLETE
    assert case.count("calls", verdict="Ok") == case.count("answers", outcome="calls_ok") == 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), max_size=20))
def test_however_the_text_is_cut_the_client_gets_the_same(cuts: list[int]) -> None:
    text, pieces = "before " + CALL + CALL + " after", []
    for cut in cuts:
        pieces.append(text[:cut])
        text = text[cut:]
    sent = run(Case(), *(event(piece) for piece in (*pieces, text)), event(finish="stop"))
    said = [choice["delta"] for choice in deltas(sent)]
    assert "".join(delta.get("content") or "" for delta in said).split() == ["before", "after"]
    assert [call["index"] for delta in said for call in delta.get("tool_calls", ())] == [0, 1]


def test_text_without_calls_leaves_as_the_bytes_it_came_in() -> None:
    events = [event("a &amp; "), event("b\u2028"), event(finish="stop")]
    assert run(Case(), *events) == b"".join(events) + DONE


def test_an_undeclared_call_reaches_the_client_and_is_counted() -> None:
    case = Case()
    sent = run(
        case, event("<tool_call>nope<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"), event(finish="stop")
    )
    assert [c["function"]["name"] for d in deltas(sent) for c in d["delta"].get("tool_calls", ())] == ["nope"]
    assert deltas(sent)[-1]["finish_reason"] == "tool_calls"
    assert case.count("calls", verdict="UnknownName") == case.count("answers", outcome="calls_wrong") == 1


def test_a_cut_call_does_not_leave_and_the_reason_is_length() -> None:
    case = Case("required")
    sent = run(case, event(CALL[:40]), event(finish="length"))
    assert not any("tool_calls" in choice["delta"] for choice in deltas(sent))
    assert deltas(sent)[-1]["finish_reason"] == "length"
    assert case.editor.ending is StreamEnd.COMPLETE
    assert case.count("answers", outcome="truncated") == 1


@pytest.mark.parametrize(("choice", "text"), [("auto", CALL[:40]), ("required", "I would rather talk.")])
def test_a_call_that_is_owed_and_not_made_ends_in_an_error_event_after_the_usage(choice: str, text: str) -> None:
    case = Case(choice)
    sent = run(case, event(text), event(finish="stop"), USAGE)
    last = chunks(sent)[-1]
    assert last["choices"][0]["finish_reason"] == "error"
    assert last["error"]["code"] == "502"
    assert not any(choice["finish_reason"] == "stop" for choice in deltas(sent))
    assert case.editor.usage is not None
    assert case.editor.ending is StreamEnd.MODEL_ERROR
    assert case.count("calls", verdict="Dropped") == case.count("answers", outcome="dropped") == 1


def test_a_delivered_call_is_not_taken_back_by_a_later_one_that_is_lost() -> None:
    case = Case()
    sent = run(case, event(CALL + "<tool_call>find<arg_key>q"), event(finish="stop"))
    assert deltas(sent)[-1]["finish_reason"] == "tool_calls"
    assert case.count("calls", verdict="Dropped") == 1


def test_an_engines_error_and_a_broken_stream_are_counted_as_unended() -> None:
    for last in (b'data: {"error":{"message":"gone","code":503}}\n\n', DONE, event("x", finish="error")):
        case = Case()
        sent = case.editor.feed(event("text")) + case.editor.feed(last)
        assert chunks(sent)[-1]["error"]
        assert case.count("answers", outcome="unended") == 1


def test_where_the_frontend_parses_the_bytes_pass_and_the_calls_are_judged() -> None:
    case = Case(parsed_here=False)
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": "find", "arguments": '{"n": "three"}'}}
    events = [event("<tool_call> is not ours here"), event(tool_calls=[call]), event(finish="tool_calls")]
    assert run(case, *events) == b"".join(events) + DONE
    assert case.count("calls", verdict="SchemaMismatch") == case.count("answers", outcome="calls_wrong") == 1


def test_where_the_frontend_parses_a_missing_call_is_counted_and_the_answer_stays() -> None:
    case = Case("required", parsed_here=False)
    events = [event("text"), event(finish="stop")]
    assert run(case, *events) == b"".join(events) + DONE
    assert case.count("answers", outcome="dropped") == 1
