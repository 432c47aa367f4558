"""Patterns are a client's and texts a model's: no choice of both may hold up the process that judges."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.bounded_search import ALL_SLOW_SEARCHES_S, SEARCH_S, BoundedPattern, TooSlow
from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.errors import UnsupportedTool
from prime_inference.toolcalls.suite.cases import function
from prime_inference.toolcalls.verdict import Verdict, judge

ENDLESS, TEXT = "^(a|aa)+$", "a" * 60 + "b"
"""2.5e12 ways to cut the text, all of which a backtracking search tries."""
LEEWAY_S = 1.0


def test_a_search_without_end_ends_and_says_that_it_does_not_know() -> None:
    pattern = BoundedPattern(ENDLESS)
    begun = time.process_time()
    with pytest.raises(TooSlow):
        pattern.search(TEXT)
    assert time.process_time() - begun < SEARCH_S + LEEWAY_S
    assert pattern.search("aaa")


def test_a_pattern_that_was_slow_too_often_is_not_tried_again() -> None:
    pattern = BoundedPattern(ENDLESS)
    for _ in range(int(ALL_SLOW_SEARCHES_S / SEARCH_S) + 2):
        with pytest.raises(TooSlow):
            pattern.search(TEXT)
    begun = time.process_time()
    for _ in range(1000):
        with pytest.raises(TooSlow):
            pattern.search(TEXT)
    assert time.process_time() - begun < LEEWAY_S


def test_a_call_whose_pattern_cannot_be_checked_in_time_is_a_mismatch_that_says_so() -> None:
    texts = {"type": "array", "items": {"type": "string", "pattern": "^(b|bb)+$"}}
    schema: dict[str, Any] = {"type": "object", "properties": {"a": texts}}
    begun = time.process_time()
    judgement = judge("f", json.dumps({"a": ["b" * 60 + "c"] * 1000}), declare([function("f", schema)]).tools)
    assert judgement.verdict is Verdict.SCHEMA_MISMATCH
    assert "takes too long" in judgement.reasons[0]
    assert time.process_time() - begun < LEEWAY_S


def test_an_enumeration_that_its_own_pattern_cannot_check_is_refused_at_the_door() -> None:
    endless = {"type": "string", "enum": ["c" * 60 + "d", "c"], "pattern": "^(c|cc)+$"}
    begun = time.process_time()
    with pytest.raises(UnsupportedTool, match="takes too long"):
        declare([function("f", {"type": "object", "properties": {"a": endless}})])
    assert time.process_time() - begun < LEEWAY_S


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "b", r"\w", "[^a]", ".", "(?:ab|b)", "(a)", "$", "^", r"(?a:\b)", "(?=a)"]), max_size=5
    ),
    st.lists(st.sampled_from(["", "*", "+?", "{1,2}"]), min_size=5, max_size=5),
    st.text("ab1 \n\u00e9", max_size=8),
)
def test_a_bounded_pattern_finds_what_an_unbounded_one_finds(atoms: list[str], repeats: list[str], text: str) -> None:
    pattern = "".join(
        atom + ("" if atom in ("$", "^", r"(?a:\b)", "(?=a)") else repeat)
        for atom, repeat in zip(atoms, repeats, strict=False)
    )
    assert BoundedPattern(pattern).search(text) is (re.search(pattern, text) is not None)
