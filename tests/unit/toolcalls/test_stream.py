"""Raw chunks into calls, and the judge that watches what goes to the client."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.choice import read_choice
from prime_inference.toolcalls.declared import Declared, declare
from prime_inference.toolcalls.raw import RawStream, raw_response
from prime_inference.toolcalls.stream import Fault, Outcome, StreamJudge, Summary
from prime_inference.toolcalls.suite.cases import function
from prime_inference.toolcalls.suite.wire import CUT, TEXTS, THOUGHT, TOOLS
from prime_inference.toolcalls.verdict import Verdict

WEATHER = [function("w", {"type": "object", "properties": {"c": {"type": "string"}}, "required": ["c"]})]
CALL = "<tool_call>w<arg_key>c</arg_key><arg_value>x</arg_value></tool_call>"


def ids() -> Callable[[], str]:
    count = itertools.count()
    return lambda: f"call_{next(count)}"


def chunk(content: str | None, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    delta = {} if content is None else {"content": content}
    return {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def streamed(text: str, finish: str, cuts: list[int], declared: Declared, choice: Any = "auto") -> list[dict[str, Any]]:
    raw = RawStream(declared, read_choice(choice, declared.tools), ids())
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    chunks = [chunk(text[start:end]) for start, end in itertools.pairwise([0, *ends])]
    sent = [raw.feed(one) for one in [*chunks, chunk(None, finish)]]
    return [one for one in sent if one is not None]


def whole(text: str, finish: str, declared: Declared, choice: Any = "auto") -> dict[str, Any]:
    response = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}]}
    made, _ = raw_response(response, declared, read_choice(choice, declared.tools), ids())
    only: dict[str, Any] = made["choices"][0]
    return only


def put_together(chunks: list[dict[str, Any]]) -> tuple[str, str, list[tuple[str, str]], str | None]:
    reasoning, content, calls, finish = "", "", [], None
    for one in chunks:
        (choice,) = one["choices"]
        reasoning += choice["delta"].get("reasoning_content", "")
        content += choice["delta"].get("content", "")
        calls += [
            (call["function"]["name"], call["function"]["arguments"]) for call in choice["delta"].get("tool_calls", ())
        ]
        finish = choice["finish_reason"]
    return reasoning, content, calls, finish


@pytest.mark.parametrize(("case", "finish"), [*((c, "stop") for c in TEXTS), *((c, "length") for c in CUT)])
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, 150), max_size=20))
def test_a_streamed_answer_is_the_whole_one_whatever_the_cuts(case: Any, finish: str, cuts: list[int]) -> None:
    declared = declare(TOOLS)
    _, _, text, expected = case
    one = whole(THOUGHT + text, finish, declared)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in one["message"].get("tool_calls", ())]
    assert calls == list(expected.calls)
    assert (one["message"]["content"] or "") == expected.content
    assert one["finish_reason"] == expected.finish_reason
    assert put_together(streamed(THOUGHT + text, finish, cuts, declared)) == (
        "thinking it over",
        expected.content,
        calls,
        expected.finish_reason,
    )


def test_content_leaves_with_the_chunk_that_it_came_in() -> None:
    declared = declare(WEATHER)
    raw = RawStream(declared, read_choice("auto", declared.tools), ids(), thinking=False)
    for text in ("Hello", " world", "!\n", "a < b"):
        sent = raw.feed(chunk(text))
        assert sent is not None
        assert sent["choices"][0]["delta"]["content"] == text
    assert raw.feed(chunk("<tool_")) is None
    sent = raw.feed(chunk("box>"))
    assert sent is not None
    assert sent["choices"][0]["delta"]["content"] == "<tool_box>"


def test_a_call_inside_the_thinking_is_thought_and_not_made() -> None:
    declared = declare(WEATHER)
    got = put_together(streamed(f"maybe {CALL}</think>No.", "stop", [5, 9, 40], declared))
    assert got == (f"maybe {CALL}", "No.", [], "stop")


def test_thinking_that_is_cut_off_is_all_thinking() -> None:
    assert put_together(streamed("so </thi", "length", [4], declare(WEATHER))) == ("so </thi", "", [], "length")


def test_without_tools_and_under_none_the_text_stays_as_it_is() -> None:
    assert put_together(streamed(f"</think>{CALL}", "stop", [12], declare([])))[1] == CALL
    assert put_together(streamed(f"</think>{CALL}", "stop", [12], declare(WEATHER), "none"))[1] == CALL


def test_a_call_that_the_model_left_unfinished_is_known_as_dropped() -> None:
    declared = declare(WEATHER)
    raw = RawStream(declared, read_choice("auto", declared.tools), ids(), thinking=False)
    raw.feed(chunk("<tool_call>w<arg_key>c</arg_key><arg_value>x"))
    raw.feed(chunk(None, "stop"))
    assert [broken.name for broken in raw.answers[0].dropped] == ["w"]


def test_choices_of_one_answer_do_not_mix() -> None:
    declared = declare(WEATHER)
    raw = RawStream(declared, read_choice("auto", declared.tools), ids(), thinking=False)
    raw.feed(chunk("<tool_call>w", index=0))
    other = raw.feed(chunk("text", index=1))
    assert other is not None
    assert other["choices"][0]["delta"]["content"] == "text"


# ── the judge ────────────────────────────────────────────────────────────────────────────────────────────────


def entry(index: int, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    return {"index": index, "id": id, "type": "function", "function": function}


def judged(*deltas: dict[str, Any], finish: str | None = "tool_calls", choice: Any = "auto", lost: int = 0) -> Summary:
    declared = declare(WEATHER)
    judge = StreamJudge(declared, read_choice(choice, declared.tools))
    for delta in deltas:
        judge.feed({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    if finish is not None:
        judge.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return judge.finish(lost)


GOOD = {"tool_calls": [entry(0, "a", "w", '{"c": "x"}')]}


def test_a_right_call_in_pieces_is_ok() -> None:
    summary = judged({"tool_calls": [entry(0, "a", "w", '{"c"')]}, {"tool_calls": [entry(0, None, None, ': "x"}')]})
    assert summary.outcome is Outcome.CALLS_OK
    assert [judgement.verdict for judgement in summary.judgements] == [Verdict.OK]
    assert summary.faults == ()


def test_a_verdict_comes_as_soon_as_the_next_call_begins() -> None:
    declared = declare(WEATHER)
    judge = StreamJudge(declared, read_choice("auto", declared.tools))
    assert judge.feed({"choices": [{"index": 0, "delta": GOOD}]}) == ()
    second = {"tool_calls": [entry(1, "b", "w", "{}")]}
    assert [one.verdict for one in judge.feed({"choices": [{"index": 0, "delta": second}]})] == [Verdict.OK]
    last = judge.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    assert [one.verdict for one in last] == [Verdict.SCHEMA_MISMATCH]
    assert judge.finish().outcome is Outcome.CALLS_WRONG


@pytest.mark.parametrize(
    ("deltas", "finish", "choice", "outcome", "faults"),
    [
        ([{"content": "hi"}], "stop", "auto", Outcome.NO_CALLS, ()),
        ([{"content": "hi"}], None, "auto", Outcome.UNENDED, ()),
        ([{"content": "hi"}], "length", "auto", Outcome.TRUNCATED, ()),
        ([], "tool_calls", "auto", Outcome.DROPPED, (Fault.FINISH_REASON,)),
        ([GOOD], "stop", "auto", Outcome.CALLS_OK, (Fault.FINISH_REASON,)),
        ([{"content": "hi"}], "stop", "required", Outcome.DROPPED, (Fault.CHOICE_IGNORED,)),
        ([GOOD], "tool_calls", "none", Outcome.CALLS_OK, (Fault.CHOICE_IGNORED,)),
        ([{"content": "<tool_"}, {"content": "call>w"}], "stop", "auto", Outcome.DROPPED, (Fault.MARKER_IN_CONTENT,)),
        (
            [{"tool_calls": [entry(1, "a", "w", '{"c": "x"}')]}],
            "tool_calls",
            "auto",
            Outcome.CALLS_OK,
            (Fault.INDEX_GAP,),
        ),
        (
            [GOOD, {"tool_calls": [entry(1, "a", "w", '{"c": "x"}')]}],
            "tool_calls",
            "auto",
            Outcome.CALLS_OK,
            (Fault.ID_REPEATED,),
        ),
        (
            [{"tool_calls": [entry(0, None, "w", '{"c": "x"}')]}],
            "tool_calls",
            "auto",
            Outcome.CALLS_OK,
            (Fault.ID_MISSING,),
        ),
        (
            [GOOD, {"tool_calls": [entry(0, "a", "w", "")]}],
            "tool_calls",
            "auto",
            Outcome.CALLS_WRONG,
            (Fault.NAME_REPEATED,),
        ),
        (
            [{"tool_calls": [entry(0, "a", "w<arg_key>", "{}")]}],
            "tool_calls",
            "auto",
            Outcome.CALLS_WRONG,
            (Fault.MARKER_IN_NAME,),
        ),
    ],
)
def test_a_request_has_one_outcome_and_its_faults(
    deltas: list[dict[str, Any]], finish: str | None, choice: Any, outcome: Outcome, faults: tuple[Fault, ...]
) -> None:
    summary = judged(*deltas, finish=finish, choice=choice)
    assert (summary.outcome, summary.faults) == (outcome, faults)


def test_half_a_call_at_the_token_limit_is_truncation_and_not_a_wrong_call() -> None:
    summary = judged({"tool_calls": [entry(0, "a", "w", '{"c": "x')]}, finish="length")
    assert summary.outcome is Outcome.TRUNCATED
    assert summary.judgements == ()


def test_calls_that_a_parser_knows_lost_are_dropped_ones() -> None:
    assert judged({"content": "hi"}, finish="stop", lost=1).outcome is Outcome.DROPPED


def test_a_whole_message_is_judged_like_a_stream() -> None:
    declared = declare(WEATHER)
    judge = StreamJudge(declared, read_choice("auto", declared.tools))
    message = {"role": "assistant", "content": None, "tool_calls": [{**entry(0, "a", "w", "{}"), "index": 0}]}
    judge.feed({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    assert judge.finish().outcome is Outcome.CALLS_WRONG
