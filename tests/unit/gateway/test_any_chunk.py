"""Whatever JSON an engine sends in place of a chunk or an answer, the gateway's readers say so and never fail themselves."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.editor import DialectEditor
from gateway.dialects.messages_answer import MessagesWriter
from gateway.dialects.responses_answer import ResponsesWriter
from gateway.dialects.responses_request import ToolNames
from gateway.relay.causes import AttemptFailed
from gateway.relay.sse import event_of
from gateway.relay.stream import Editor, StreamEditor
from gateway.relay.typed_stream import MESSAGES, RESPONSES, TypedEditor
from gateway.relay.whole import Whole, chat_answer, messages_answer, responses_answer
from tests.unit.gateway.test_tool_editor import Case

EDITORS: dict[str, Callable[[], Editor]] = {
    "chat": lambda: StreamEditor(forward_usage=True),
    "tools, read here": lambda: Case().editor,
    "tools, read by the frontend": lambda: Case(parsed_here=False).editor,
    "responses from chat": lambda: DialectEditor(
        StreamEditor(forward_usage=True), ResponsesWriter({"model": "m"}, ToolNames())
    ),
    "messages from chat": lambda: DialectEditor(Case().editor, MessagesWriter("m")),
    "responses": lambda: TypedEditor(RESPONSES),
    "messages": lambda: TypedEditor(MESSAGES),
}
READERS: dict[str, Callable[[bytes], Whole]] = {
    "chat": chat_answer,
    "responses": responses_answer,
    "messages": messages_answer,
}
NAMES = (
    "choices", "delta", "message", "content", "finish_reason", "tool_calls", "function", "arguments", "index", "usage",
    "prompt_tokens", "prompt_tokens_details", "cached_tokens", "completion_tokens", "nvext", "timing", "error", "code",
    "type", "response", "output", "status", "input_tokens", "output_tokens", "input_tokens_details", "name", "id",
)  # fmt: skip
WORDS = st.sampled_from(["stop", "error", "length", "response.completed", "message_delta", "message_start", "²", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
CHUNKS = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"delta": JSON, "finish_reason": JSON}), max_size=2)},
    optional={"usage": JSON, "nvext": JSON, "error": JSON},
)
GOOD = b'{"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'


@pytest.mark.parametrize("name", EDITORS)
@given(body=JSON | CHUNKS, begun=st.booleans())
def test_any_event_is_read_or_said_to_be_none(name: str, body: Any, begun: bool) -> None:
    editor = EDITORS[name]()
    if begun:
        editor.feed(event_of(GOOD))
    editor.feed(event_of(json.dumps(body, separators=(",", ":")).encode()))
    editor.end()
    usage = editor.usage
    assert usage is None or min(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) >= 0


@pytest.mark.parametrize("name", READERS)
@given(body=JSON | CHUNKS)
def test_any_whole_answer_is_read_or_said_to_be_none(name: str, body: Any) -> None:
    try:
        whole = READERS[name](json.dumps(body).encode())
    except AttemptFailed:
        return
    assert whole.usage is None or whole.usage.total_tokens >= 0
