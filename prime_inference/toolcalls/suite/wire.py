"""Cases on the wire: known model text, and exactly what a client must get for it. They need an engine of canned text.

The first are one by one, each for a public bug report (its repository and number); the rest are generated: every
construct of `parts`, in both forms of the wire.
"""

import json
from collections.abc import Iterator
from typing import Any

from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.glm import Form, encode
from prime_inference.toolcalls.strict_json import spell
from prime_inference.toolcalls.suite.cases import Case, Expected, ToolEntry, canned_messages, function
from prime_inference.toolcalls.suite.generate import generate
from prime_inference.toolcalls.verdict import Verdict

THOUGHT = "thinking it over</think>"
"""Every text starts inside the thinking that the prompt has opened."""
ADDRESS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "no": {"type": "integer"}},
    "required": ["city"],
}
TOOLS: tuple[ToolEntry, ...] = (
    function("weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
    function("now", {"type": "object", "properties": {}}),
    function(
        "typed",
        {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "i": {"type": "integer"},
                "n": {"type": "number"},
                "b": {"type": "boolean"},
                "o": {"$ref": "#/$defs/Address"},
                "m": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}]},
                "l": {"type": "array", "items": {"type": "string"}},
                "u": {"type": ["string", "null"]},
                "v": {"type": ["string", "integer"]},
                "x": {},
            },
            "$defs": {"Address": ADDRESS},
        },
    ),
    function("get", {"type": "object", "properties": {"id": {"type": "string"}}}),
    function("get_all", {"type": "object", "properties": {"id": {"type": "string"}}}),
)
GENERATED_SEED = 47
GENERATED_TOOLS = 39
"""One tool led by each construct."""


def call(name: str, *pairs: tuple[str, str], lines: bool = False) -> str:
    newline = "\n" if lines else ""
    body = "".join(f"{newline}<arg_key>{key}</arg_key>{newline}<arg_value>{value}</arg_value>" for key, value in pairs)
    return f"<tool_call>{name}{body}{newline}</tool_call>"


def one(key: str, text: str, read: Any, tool: str = "typed") -> tuple[str, Expected]:
    """A call with one argument: the wire's text for it, and the value that it is."""
    return call(tool, (key, text)), Expected(((tool, f"{{{spell(key)}: {_json(read)}}}"),))


def _json(read: Any) -> str:
    return read.text if isinstance(read, Raw) else spell(read)


class Raw:
    """Arguments that are compared as the text they are: how a number was written must survive."""

    def __init__(self, text: str) -> None:
        self.text = text


def _unclosed() -> str:
    return call("weather", ("city", "Bern")).removesuffix("</tool_call>")


ENTITIES = "&lt;b&gt; &amp;amp; &quot;x&quot; &#39;"
NEWLINES = "def f(x):\n    return x\n\n# end\n"
TEXTS: tuple[tuple[str, str, str, Expected], ...] = (
    (
        "unknown-name",
        "1 PrimeIntellect-ai/renderers#114",
        call("nope", ("q", "5")),
        Expected((("nope", '{"q": "5"}'),), verdicts=(Verdict.UNKNOWN_NAME,)),
    ),
    (
        "unknown-then-known",
        "1, 27 ai-dynamo/dynamo#4723",
        call("nope") + call("now"),
        Expected((("nope", "{}"), ("now", "{}")), verdicts=(Verdict.UNKNOWN_NAME, Verdict.OK)),
    ),
    (
        "known-then-unknown",
        "3 sgl-project/sglang#33902",
        call("now") + call("nope"),
        Expected((("now", "{}"), ("nope", "{}")), verdicts=(Verdict.OK, Verdict.UNKNOWN_NAME)),
    ),
    ("entities", "5 ai-dynamo/frontend-crates#249", *one("s", ENTITIES, ENTITIES)),
    (
        "entities-in-object",
        "5 ai-dynamo/frontend-crates#249",
        *one("o", '{"city": "&quot;x&quot;"}', {"city": "&quot;x&quot;"}),
    ),
    ("ref-object", "6 vllm-project/vllm#46924", *one("o", '{"city": "Köln", "no": 4}', {"city": "Köln", "no": 4})),
    ("ref-or-null", "6 vllm-project/vllm#46924", *one("m", '{"city": "x"}', {"city": "x"})),
    ("ref-null", "7 sgl-project/sglang#35914", *one("m", "null", None)),
    ("union-null", "7 sgl-project/sglang#35914", *one("u", "null", None)),
    ("string-null", "8 vllm-project/vllm#46827", *one("s", "null", "null")),
    ("string-number", "9 antirez/ds4#569", *one("s", "007", "007")),
    ("string-json", "9 antirez/ds4#569", *one("s", '{"k": 1}', '{"k": 1}')),
    ("integer", "9 antirez/ds4#569", *one("i", "42", 42)),
    ("integer-as-written", "10 sgl-project/sglang#36688", *one("i", "5.0", Raw("5.0"))),
    ("number-as-written", "10 sgl-project/sglang#36688", *one("n", "1e400", Raw("1e400"))),
    ("boolean", "9 antirez/ds4#569", *one("b", "true", True)),
    ("list", "9 antirez/ds4#569", *one("l", '["a", "b"]', ["a", "b"])),
    ("string-or-integer", "7 sgl-project/sglang#35914", *one("v", "7", 7)),
    ("untyped-object", "6 vllm-project/vllm#46924", *one("x", '{"a": [1]}', {"a": [1]})),
    ("untyped-text", "6 vllm-project/vllm#46924", *one("x", "just text", "just text")),
    (
        "not-an-integer",
        "10 sgl-project/sglang#36688",
        call("typed", ("i", "123abc")),
        Expected((("typed", '{"i": "123abc"}'),), verdicts=(Verdict.SCHEMA_MISMATCH,)),
    ),
    (
        "broken-object",
        "10 sgl-project/sglang#36688",
        call("typed", ("o", "{city: x}")),
        Expected((("typed", '{"o": "{city: x}"}'),), verdicts=(Verdict.SCHEMA_MISMATCH,)),
    ),
    (
        "missing-argument",
        "article",
        call("weather"),
        Expected((("weather", "{}"),), verdicts=(Verdict.SCHEMA_MISMATCH,)),
    ),
    (
        "prefix-name",
        "12 vllm-project/vllm#39757",
        call("get_all", ("id", "1")),
        Expected((("get_all", '{"id": "1"}'),)),
    ),
    (
        "prefix-name-short",
        "12 vllm-project/vllm#39757",
        call("get", ("id", "_all")),
        Expected((("get", '{"id": "_all"}'),)),
    ),
    ("no-arguments", "14 sgl-project/sglang#15405", call("now"), Expected((("now", "{}"),))),
    ("no-arguments-lines", "15 osaurus-ai/vmlx-swift#228", call("now", lines=True), Expected((("now", "{}"),))),
    ("lines", "4.5 form", call("weather", ("city", "Bern"), lines=True), Expected((("weather", '{"city": "Bern"}'),))),
    (
        "lines-two",
        "4.5 form",
        "\n" + call("weather", ("city", "A"), lines=True) + "\n" + call("now", lines=True),
        Expected((("weather", '{"city": "A"}'), ("now", "{}"))),
    ),
    ("value-with-call-end", "19 smg-project/smg#1942", *one("s", "a</tool_call>b", "a</tool_call>b")),
    ("value-with-call", "19 smg-project/smg#1942", *one("s", call("now"), call("now"))),
    ("value-with-value-end", "19 smg-project/smg#1942", *one("s", "a</arg_value>b", "a</arg_value>b")),
    ("value-ends-with-value-end", "19 smg-project/smg#1942", *one("s", "a</arg_value>", "a</arg_value>")),
    (
        "json-string-with-markers",
        "19 smg-project/smg#1942",
        *one("o", '{"city": "a</arg_value></tool_call><tool_call>"}', {"city": "a</arg_value></tool_call><tool_call>"}),
    ),
    ("value-with-think", "19 smg-project/smg#1942", *one("s", "<think>x</think>", "<think>x</think>")),
    ("value-with-half-marker", "19 smg-project/smg#1942", *one("s", "a</arg_val <tool_cal", "a</arg_val <tool_cal")),
    ("white-space", "20 sgl-project/sglang#20543", *one("s", "  \n\t x \n", "  \n\t x \n")),
    ("indented-code", "20 sgl-project/sglang#20543", *one("s", NEWLINES, NEWLINES)),
    ("empty-string", "20 sgl-project/sglang#20543", *one("s", "", "")),
    ("escapes", "21 sgl-project/sglang#12456", *one("s", 'a\\"b\\n\\\\', 'a\\"b\\n\\\\')),
    ("quotes", "21 sgl-project/sglang#12456", *one("s", '"quoted"', '"quoted"')),
    ("many-bytes", "11 zai-org/GLM-4.5#146", *one("s", "naïve 日本語 👩‍👩‍👧 \u2028", "naïve 日本語 👩‍👩‍👧 \u2028")),
    ("long-string", "32 vllm-project/vllm#50604", *one("s", "0123456789abcdef" * 512, "0123456789abcdef" * 512)),
    (
        "key-lost",
        "22 vllm-project/vllm#47190",
        "<tool_call>weather</arg_key><arg_value>x</arg_value></tool_call>",
        Expected((("weather", "</arg_key><arg_value>x</arg_value>"),), verdicts=(Verdict.INVALID_JSON,)),
    ),
    (
        "key-twice",
        "I5",
        call("typed", ("s", "a"), ("s", "b")),
        Expected((("typed", '{"s": "a", "s": "b"}'),)),
    ),
    ("end-lost", "24 ollama/ollama#17250", _unclosed(), Expected((("weather", '{"city": "Bern"}'),))),
    ("text-before", "I8", "I will look. " + call("now"), Expected((("now", "{}"),), content="I will look. ")),
    ("text-after", "I8", call("now") + " Done.", Expected((("now", "{}"),), content=" Done.")),
    (
        "text-between",
        "I8",
        "One." + call("now") + "Two." + call("now"),
        Expected((("now", "{}"), ("now", "{}")), content="One.Two."),
    ),
    (
        "three-calls",
        "27 ai-dynamo/dynamo#4723",
        call("now") + call("weather", ("city", "A")) + call("now"),
        Expected((("now", "{}"), ("weather", '{"city": "A"}'), ("now", "{}"))),
    ),
    (
        "text-only",
        "I8",
        "No tool is needed: 1 < 2 and <b>bold</b>.",
        Expected((), content="No tool is needed: 1 < 2 and <b>bold</b>.", finish_reason="stop"),
    ),
)
CUT: tuple[tuple[str, str, str, Expected], ...] = (
    (
        "cut-in-value",
        "23 ai-dynamo/dynamo#9355",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Be",
        Expected((), finish_reason="length"),
    ),
    (
        "cut-in-name",
        "23 ai-dynamo/dynamo#9355",
        "Well. <tool_call>wea",
        Expected((), content="Well. ", finish_reason="length"),
    ),
    ("cut-before-end", "23 ai-dynamo/dynamo#9355", _unclosed(), Expected((), finish_reason="length")),
    (
        "cut-after-a-call",
        "23 ai-dynamo/dynamo#9355",
        call("now") + "<tool_call>wea",
        Expected((("now", "{}"),), finish_reason="length"),
    ),
    (
        "cut-text",
        "23 ai-dynamo/dynamo#9355",
        "This is the be",
        Expected((), content="This is the be", finish_reason="length"),
    ),
)


def wire_cases(each: int = 4) -> Iterator[Case]:
    """`each`: argument objects of every generated tool, in turn in one form of the wire and the other."""
    for finish, group in (("stop", TEXTS), ("length", CUT)):
        for name, source, text, expected in group:
            yield _case(f"wire.{name}", source, TOOLS, text, expected, finish)
    for sample in generate(GENERATED_TOOLS, GENERATED_SEED):
        tools = (function("made", sample.parameters),)
        tool = declare(tools).tools["made"]
        for number, arguments in enumerate((*sample.right, *sample.extended)[:each]):
            form = tuple(Form)[(sample.number + number) % len(Form)]
            expected = Expected((("made", json.dumps(arguments, ensure_ascii=False)),))
            id = f"wire.{sample.constructs[0]}.{form}.{number}"
            yield _case(id, "docs/toolcalls.md", tools, encode("made", arguments, tool, form), expected, "stop")


def _case(id: str, source: str, tools: tuple[ToolEntry, ...], text: str, expected: Expected, finish: str) -> Case:
    text = THOUGHT + text
    return Case(
        id,
        "wire",
        source,
        tools,
        canned_messages(text, 0, finish),
        expected=expected,
        canned=text,
        canned_finish=finish,
    )
