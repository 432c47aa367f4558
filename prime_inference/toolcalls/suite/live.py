"""Cases for a real model: what it says is its own, and every call that comes back is judged.

`schemas`: a call of each generated tool must be made and fit. `choice`: tool_choice and its relatives are kept.
`streaming`: the same request streamed. `multi-turn`: calls and results of earlier turns do not confuse the next
one.
"""

from collections.abc import Iterator
from typing import Any

from prime_inference.toolcalls.suite.cases import Case, ToolEntry, function
from prime_inference.toolcalls.suite.generate import generate
from prime_inference.toolcalls.suite.wire import TOOLS

SCHEMAS_SEED = 5
MOST_TOKENS = 1024
"""Of one answer. A call cut by it counts as truncated, beside the rates."""
WEATHER, NOW = TOOLS[0], TOOLS[1]
NAMED = {"type": "function", "function": {"name": "now"}}


def _ask(text: str) -> tuple[dict[str, Any], ...]:
    return ({"role": "user", "content": text},)


def schema_cases(count: int) -> Iterator[Case]:
    for sample in generate(count, SCHEMAS_SEED):
        yield Case(
            f"schemas.{sample.number:04}.{sample.constructs[0]}",
            "schemas",
            "docs/toolcalls.md",
            (function("record", sample.parameters, description="Records the given values."),),
            _ask("Record some plausible example values with the tool."),
            tool_choice="required",
            options={"max_tokens": MOST_TOKENS},
            calls_wanted=True,
        )


def choice_cases() -> Iterator[Case]:
    both: tuple[ToolEntry, ...] = (WEATHER, NOW)
    ask = _ask("What is the weather in Bern, and what time is it?")
    limit = {"max_tokens": MOST_TOKENS}
    chat = _ask("Say hello. No tool is needed.")
    yield Case("choice.auto", "choice", "I10", both, ask, options=limit)
    yield Case("choice.none", "choice", "I10", both, ask, "none", limit, no_calls_wanted=True)
    yield Case(
        "choice.required", "choice", "16 vllm-project/vllm#48103", both, chat, "required", limit, calls_wanted=True
    )
    yield Case(
        "choice.named",
        "choice",
        "29 vllm-project/vllm#50477",
        both,
        chat,
        NAMED,
        limit,
        calls_wanted=True,
        only=("now",),
        most_calls=1,
    )
    single = {**limit, "parallel_tool_calls": False}
    yield Case("choice.not-parallel", "choice", "I10", both, ask, "required", single, calls_wanted=True, most_calls=1)
    closed = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    yield Case(
        "choice.strict",
        "choice",
        "18 vllm-project/vllm#47175",
        (function("weather", closed, strict=True),),
        ask,
        "required",
        limit,
        calls_wanted=True,
    )
    yield Case(
        "choice.not-strict",
        "choice",
        "18 vllm-project/vllm#47175",
        (function("now", {"type": "object"}, strict=False),),
        ask,
        "required",
        limit,
        calls_wanted=True,
    )


def streaming_cases() -> Iterator[Case]:
    for number, city in enumerate(("Bern", "São Paulo", "東京", 'a "quoted" <city>')):
        options = {"max_tokens": MOST_TOKENS, "temperature": 0}
        ask = _ask(f"Call the weather tool for {city}.")
        yield Case(
            f"streaming.{number}",
            "streaming",
            "11 zai-org/GLM-4.5#146",
            (WEATHER,),
            ask,
            "required",
            options,
            calls_wanted=True,
        )


def multi_turn_cases() -> Iterator[Case]:
    earlier = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    other = {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    history: tuple[dict[str, Any], ...] = (
        {"role": "user", "content": "Weather in Bern?"},
        {"role": "assistant", "content": None, "tool_calls": [earlier, other]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees, <rain> & wind"},
        {"role": "tool", "tool_call_id": "call_2", "content": "10:00"},
    )
    limit = {"max_tokens": MOST_TOKENS}
    again = (*history, {"role": "user", "content": "And in Basel?"})
    yield Case("multi-turn.answer", "multi-turn", "26 vllm-project/recipes#327", (WEATHER, NOW), history, options=limit)
    yield Case(
        "multi-turn.again",
        "multi-turn",
        "26 vllm-project/recipes#327",
        (WEATHER, NOW),
        again,
        "required",
        limit,
        calls_wanted=True,
    )
    yield Case(
        "multi-turn.name-gone",
        "multi-turn",
        "2 InternLM/lmdeploy#4901",
        (NOW,),
        again,
        "required",
        limit,
        calls_wanted=True,
    )
    parts = (*history[:2], {**history[2], "content": [{"type": "text", "text": "12 degrees"}]}, history[3])
    yield Case(
        "multi-turn.content-parts", "multi-turn", "26 vllm-project/recipes#327", (WEATHER, NOW), parts, options=limit
    )
