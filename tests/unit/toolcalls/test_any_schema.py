"""Whatever a client sends as a schema, the door answers with a tool or a ToolError, and the judge with a verdict."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.declared import OnUnsupported, declare
from prime_inference.toolcalls.errors import ToolError, UnsupportedTool
from prime_inference.toolcalls.shapes import SHAPES
from prime_inference.toolcalls.suite.cases import function
from prime_inference.toolcalls.verdict import Verdict, judge

words = st.sampled_from(
    ["string", "integer", "object", "array", "null", "dict", "colour", "a", "b", "^a", "(", "#", "#/$defs/a", "x#y"]
)
leaves = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-3, 3), words)
schemas: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(words, inner, max_size=3),
        st.dictionaries(st.sampled_from([*SHAPES, "type", "const", "nullable", "$anchor", "title"]), inner, max_size=4),
    ),
    max_leaves=14,
)


@settings(max_examples=150, deadline=None)
@given(schemas, st.dictionaries(words, leaves, max_size=3))
def test_any_schema_is_read_or_refused_and_any_call_judged(schema: Any, properties: dict[str, Any]) -> None:
    for parameters in (schema, {"type": "object", "properties": {"a": schema, **properties}, "$defs": {"a": schema}}):
        with contextlib.suppress(ToolError):
            declare([function("t", parameters)])
        tools = declare([function("t", parameters)], OnUnsupported.NAMES_ONLY).tools
        tools["t"].argument("a")
        for arguments in ("{}", '{"a": 1}', '{"a": {"b": [null]}}', "[]"):
            assert judge("t", arguments, tools).verdict in (Verdict.OK, Verdict.SCHEMA_MISMATCH)


def test_a_schema_nested_without_reason_is_refused() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(2_000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(ToolError, match="nested too deeply"):
        declare([function("t", deep)])


def test_null_for_a_keyword_means_it_was_not_given() -> None:
    nulls = {"type": "string", "pattern": None, "items": None, "enum": None, "default": None}
    tool = declare([function("t", {"type": "object", "properties": {"a": nulls}, "required": None})]).tools["t"]
    assert tool.grammar == {"type": "object", "properties": {"a": {"type": "string", "default": None}}}


def test_a_schema_that_refers_to_itself_without_end_is_refused_and_judged_valid() -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}
    with pytest.raises(UnsupportedTool, match="without end"):
        declare([function("t", endless)])
    tools = declare([function("t", endless)], OnUnsupported.NAMES_ONLY).tools
    assert judge("t", '{"a": 1}', tools).verdict is Verdict.OK
