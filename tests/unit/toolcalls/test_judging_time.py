"""What a call may cost the event loop that reads and judges it: no more than in proportion to its length."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.draft7 import mismatches, validator
from prime_inference.toolcalls.glm import Decoder
from prime_inference.toolcalls.suite.cases import function
from prime_inference.toolcalls.verdict import Verdict, judge

NODE = {
    "anyOf": [
        {"type": "object", "properties": {"c": {"$ref": "#/$defs/node"}}, "required": ["x"]},
        {"type": "object", "properties": {"c": {"$ref": "#/$defs/node"}, "u": {"uniqueItems": True}}},
        {"type": "integer"},
    ]
}
TREE = {"type": "object", "properties": {"c": {"$ref": "#/$defs/node"}}, "$defs": {"node": NODE}}
QUICK_S = 1.0
"""Of a processor, on a slow one: what these took before were minutes."""


def judged(parameters: dict[str, Any], arguments: str) -> tuple[Verdict, float]:
    declared = declare([function("t", parameters)])
    began = time.thread_time()
    verdict = judge("t", arguments, declared.tools).verdict
    return verdict, time.thread_time() - began


def test_a_deep_value_of_a_recursive_union_is_judged_once_a_node_and_not_once_a_way_to_it() -> None:
    """Each level's first alternative fails only after all that is below it was looked at."""
    for leaf, verdict in (("{}", Verdict.OK), ('"no leaf"', Verdict.SCHEMA_MISMATCH)):
        found, seconds = judged(TREE, '{"c": ' * 24 + leaf + "}" * 24)
        assert found is verdict
        assert seconds < QUICK_S


def test_a_long_list_of_objects_is_seen_to_be_unique_in_one_pass() -> None:
    rows = {"type": "object", "properties": {"rows": {"type": "array", "uniqueItems": True}}}
    distinct = [{"n": number, "of": [number, {"x": None}]} for number in range(4000)]
    for given_, verdict in ((distinct, Verdict.OK), ([*distinct, distinct[7]], Verdict.SCHEMA_MISMATCH)):
        found, seconds = judged(rows, json.dumps({"rows": given_}))
        assert found is verdict
        assert seconds < QUICK_S


@pytest.mark.parametrize("begun", ["<tool_call>", "<tool_call>t<arg_key>", "<tool_call>t<arg_key>k</arg_key>"])
def test_what_is_written_without_end_is_looked_at_once(begun: str) -> None:
    """A model that runs on in a name, a key or a gap: each of its tokens once, and not all of them with each."""
    decoder = Decoder({})
    decoder.feed(begun)
    began = time.thread_time()
    for _ in range(25_000):
        decoder.feed("    " if begun.endswith("</arg_key>") else "word")
    assert decoder.finish(natural=True)
    assert time.thread_time() - began < QUICK_S


SCALARS = st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, 2, "1", "", "a", float("inf")])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("acux"), inner, max_size=3)
)


@given(VALUES)
def test_nothing_is_judged_otherwise_than_by_the_validator_itself(value: Any) -> None:
    for schema in (TREE, NODE | {"$defs": {"node": NODE}}, {"uniqueItems": True}, {"items": {"uniqueItems": True}}):
        checker = validator(schema)
        assert checker is not None
        plain = list(Draft7Validator(schema).iter_errors(value))
        found = mismatches(checker, value)
        assert bool(found) == bool(plain)
        if found:
            places = ["/" + "/".join(map(str, error.absolute_path)) for error in plain]
            assert {one.partition(": ")[0] for one in found} <= set(places)
