import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.usage import Usage
from gateway.relay.sse import data_of, event_of
from gateway.relay.stream import StreamEditor, StreamEnd, UpstreamErrorEvent

DONE = b"data: [DONE]\n\n"


def chunk(content: str | None = "hi", finish: str | None = None, **more: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    body = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }
    return event_of(json.dumps(body, separators=(",", ":")).encode())


def usage_chunk() -> bytes:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    return event_of(json.dumps({"id": "c1", "choices": [], "usage": usage}, separators=(",", ":")).encode())


def run(editor: StreamEditor, *events: bytes) -> bytes:
    return b"".join(editor.feed(event) for event in events) + editor.end()


def test_a_plain_stream_is_forwarded_byte_for_byte() -> None:
    events = [chunk("a"), b": ping\n\n", chunk("b"), chunk(None, "stop")]
    editor = StreamEditor(forward_usage=True)
    assert run(editor, *events, DONE) == b"".join(events) + DONE
    assert editor.ending is StreamEnd.COMPLETE


def test_usage_is_kept_back_unless_asked_for_and_metered_either_way() -> None:
    for asked, expected in ((False, b""), (True, usage_chunk())):
        editor = StreamEditor(forward_usage=asked)
        sent = run(editor, chunk("a", "stop"), usage_chunk(), DONE)
        assert sent == chunk("a", "stop") + expected + DONE
        assert editor.usage == Usage(9, 2, 4, 0)


def test_the_engines_extension_is_taken_out_and_its_timing_kept() -> None:
    editor = StreamEditor(forward_usage=True)
    sent = run(editor, chunk("a"), chunk("b", "stop", nvext={"timing": {"ttft_ms": 3}}), DONE)
    assert b"nvext" not in sent
    assert json.loads(data_of(sent.split(b"\n\n")[1] + b"\n\n") or b"")["choices"][0]["delta"]["content"] == "b"
    assert editor.timing == {"ttft_ms": 3}


@given(st.lists(st.sampled_from(['"', "\\", "usage", "nvext", "error", "finish_reason", ":null", ":{", "\n", "é"])))
def test_no_text_of_a_model_is_taken_for_the_protocol(words: list[str]) -> None:
    editor = StreamEditor(forward_usage=False)
    editor.feed(chunk("a"))
    text = chunk("".join(words))
    assert editor.feed(text) == text
    assert editor.error is None
    assert editor.end() != DONE, "no finish reason was said"


def test_words_of_the_protocol_inside_a_models_text_change_nothing() -> None:
    text = chunk('"nvext": "usage" {"error": 1} data: [DONE] "finish_reason":"stop"')
    assert run(StreamEditor(forward_usage=False), chunk("a"), text, chunk(None, "stop"), DONE) == (
        chunk("a") + text + chunk(None, "stop") + DONE
    )


def test_a_stream_without_a_finish_reason_ends_in_an_error_event() -> None:
    for ending in ((), (DONE,)):
        editor = StreamEditor(forward_usage=False)
        sent = run(editor, chunk("a"), *ending)
        error = json.loads(data_of(sent.split(b"\n\n")[1] + b"\n\n") or b"")
        assert error["error"]["code"] == "502"
        assert error["choices"][0]["finish_reason"] == "error"
        assert error["id"] == "c1"
        assert sent.endswith(DONE)
        assert editor.ending is StreamEnd.TRUNCATED


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (event_of(b'{"error":{"message":"no worker","type":"x","code":503}}'), 503),
        (event_of(b'{"error":"boom"}'), 500),
        (b"event: error\n: worker lost\n\n", 502),
        (event_of(b'{"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"error"}],"usage":{}}'), 500),
        (event_of(b'{"broken": "usage'), 502),
    ],
)
def test_every_shape_of_an_upstream_error_becomes_one_openai_error_event(event: bytes, status: int) -> None:
    editor = StreamEditor(forward_usage=True)
    first = event_of(b'{"id":"c1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}')
    sent = run(editor, first, event.replace(b'{"broken"', b'{"nvext"'), chunk("never"))
    assert editor.error is not None
    assert editor.error.status == status
    assert sent.count(b'"error":{') == 1
    assert sent.endswith(DONE)
    assert b"never" not in sent


def test_an_error_before_any_answer_leaves_the_stream_unbegun() -> None:
    editor = StreamEditor(forward_usage=True)
    editor.feed(event_of(b'{"error":{"message":"busy","code":529}}'))
    assert not editor.began


def test_nothing_is_forwarded_after_done() -> None:
    editor = StreamEditor(forward_usage=True)
    run(editor, chunk("a", "stop"), DONE)
    assert editor.feed(chunk("late")) == b""
    assert editor.fail(UpstreamErrorEvent(500, "late")) == b""


def test_events_that_break_sdk_decoders_are_dropped() -> None:
    editor = StreamEditor(forward_usage=True)
    assert editor.feed(b"retry: 100\n\n") == b""
    assert editor.feed(b"id: 4\n\n") == b""


def test_a_completions_error_event_has_the_text_shape() -> None:
    editor = StreamEditor(forward_usage=True)
    editor.feed(event_of(b'{"id":"c","object":"text_completion","choices":[{"index":0,"text":"a"}]}'))
    assert b'"text":""' in editor.end()


def running(text: str, count: int, finish: str | None = None, **more: object) -> bytes:
    """A chunk as Dynamo sends it when asked for usage all along."""
    usage = {"prompt_tokens": 9, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": 4}}
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    body = {"id": "c1", "choices": [choice], "model": "m", "usage": usage, **more}
    return event_of(json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode())


@pytest.mark.parametrize(
    ("forward_usage", "separators"), [(False, (",", ":")), (True, (",", ":")), (False, (", ", ": "))]
)
def test_usage_beside_choices_is_taken_out_and_known_from_the_first_chunk(
    forward_usage: bool, separators: tuple[str, str]
) -> None:
    editor = StreamEditor(forward_usage=forward_usage)
    tricky = 'é ,"usage":{"prompt_tokens":1} }'
    events = [running("a", 1), running(tricky, 2), running("", 3, "stop", nvext={"timing": {"ttft_ms": 1}})]
    if separators != (",", ":"):
        events = [event_of(json.dumps(json.loads(each[6:]), separators=separators).encode()) for each in events]
    sent = []
    for count, event in enumerate(events, 1):
        sent.append(editor.feed(event))
        assert editor.usage == Usage(9, count, 4, 0)
    chunks = [json.loads(each[6:]) for each in sent]
    assert all("usage" not in each and "nvext" not in each for each in chunks)
    assert chunks[1]["choices"][0]["delta"]["content"] == tricky
    if separators == (",", ":"):
        text = json.dumps(tricky, ensure_ascii=False).encode()
        whole = b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":' + text
        assert sent[1] == whole + b'},"finish_reason":null}],"model":"m"}\n\n'
    assert editor.feed(usage_chunk()) == (usage_chunk() if forward_usage else b"")
    assert editor.feed(DONE) == DONE
    assert editor.usage == Usage(9, 2, 4, 0)


def test_usage_that_is_no_usage_is_forgotten() -> None:
    editor = StreamEditor(forward_usage=False)
    editor.feed(running("a", 1))
    assert editor.usage == Usage(9, 1, 4, 0)
    editor.feed(running("b", 2).replace(b'"completion_tokens":2', b'"completion_tokens":"x"'))
    assert editor.usage == Usage(9, 1, 4, 0)
