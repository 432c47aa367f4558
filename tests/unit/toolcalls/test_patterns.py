"""Regular expressions for Python's judge and xgrammar's grammar."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.grammar_patterns import to_grammar, with_lengths
from prime_inference.toolcalls.regexes import UnreadablePattern, complement, holds, merged, minus, to_python


@pytest.mark.parametrize(
    ("pattern", "fitting", "unfitting"),
    [
        ("^foo", ["foobar"], ["xfoo"]),
        ("o$", ["foo"], ["foo\n", "ox"]),
        ("^\\d+$", ["12"], ["١٢", ""]),
        ("^\\w+$", ["a_1"], ["é", "a-b"]),
        ("^.$", ["x", "é"], ["\n", "\u2028", "xx"]),
        ("^\\s$", ["\u00a0", "\ufeff", " "], ["x"]),
        ("^[^\\d\\s]+$", ["ab"], ["a1", "a b"]),
        ("^\\p{L}+$", ["né日"], ["a1"]),
        ("^\\P{L}$", ["1"], ["a"]),
        ("^[\\p{Lu}_]+$", ["A_É"], ["a"]),
        ("^(?<y>a)\\k<y>$", ["aa"], ["ab"]),
        ("^\\u{1F600}|\\x41\\cA$", ["😀", "A\x01"], ["A"]),
        ("\\bfoo\\b", ["a foo b"], ["food"]),
        ("^a\\/b$", ["a/b"], ["ab"]),
        ("^[a-]$", ["-", "a"], ["b"]),
        ("^[]$|x", ["x"], ["]"]),
        ("^(?!tmp)", ["abc"], ["tmpx"]),
    ],
)
def test_a_pattern_means_in_python_what_it_means_in_ecma_262(
    pattern: str, fitting: list[str], unfitting: list[str]
) -> None:
    expression = to_python(pattern)
    assert all(expression.search(text) for text in fitting)
    assert not any(expression.search(text) for text in unfitting)


@pytest.mark.parametrize("pattern", ["(", "a)", "[z-a]", "*a", "a**", "\\p{Nonsense}", "(?i)a"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(UnreadablePattern):
        to_python(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^foo", "^foo[^<]*$"),
        ("foo", "^[^<]*foo[^<]*$"),
        ("^a$|b", "^(?:a|[^<]*b[^<]*)$"),
        ("^(?:x|y)$", "^(?:x|y)$"),
        ("^[\\w.-]+$", "^[\\--.0-9A-Z_a-z]+$"),
        ("^.$", "^[^\\u000a\\u000d<]$"),
    ],
)
def test_a_pattern_for_a_raw_value_is_a_full_match_that_cannot_spell_the_end_of_the_value(
    pattern: str, text: str
) -> None:
    assert to_grammar(pattern, raw=True).text == text


def test_inside_json_a_quote_is_spelled_as_its_escape() -> None:
    assert to_grammar('^a"b$', raw=False).text == 'a(?:\\\\")b'.join("^$")


@pytest.mark.parametrize("pattern", ["(?=a)", "a\\b", "(a)\\1", "\\p{L}", "a^b", "(^a)b", "("])
def test_what_the_grammar_cannot_hold_says_why(pattern: str) -> None:
    told = to_grammar(pattern, raw=True)
    assert told.text is None
    assert told.looser


def test_lengths_go_into_a_pattern_of_one_repeated_character() -> None:
    assert with_lengths("^[a-z]+$", 0, 5) == "^[a-z]{1,5}$"
    assert with_lengths("^[a-z]*$", 2, None) == "^[a-z]{2,}$"
    assert with_lengths("^[a-z]+x$", 0, 5) is None


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(("a", "(?:a|b[0-9])", "[0-9]")),
    st.integers(0, 450),
    st.integers(0, 450) | st.none(),
)
def test_a_large_count_inside_json_is_written_in_pieces_that_say_the_same(
    part: str, low: int, more: int | None
) -> None:
    """xgrammar's cache dies of a count beyond 128 there ("per_rule_fsm_hashes")."""
    high = None if more is None else low + more
    told = to_grammar(f"^{part}{{{low},{'' if high is None else high}}}$", raw=False).text
    assert told is not None
    pieces = re.findall(rf"{re.escape(part)}\{{(\d+),(\d*)\}}", told)
    assert "".join(f"{part}{{{least},{most}}}" for least, most in pieces) == told[1:-1]
    assert all(int(least) <= 100 and int(most or 0) <= 100 for least, most in pieces)
    assert sum(int(least) for least, _ in pieces) == low
    if high is not None:
        assert sum(int(most) for _, most in pieces) == high
    else:
        assert [most for _, most in pieces if not most] == [""], "one piece has no end"


def test_an_exact_count_and_one_that_is_too_large_to_split() -> None:
    assert to_grammar("^a{128}$", raw=False).text == "^a{100,100}a{28,28}$"
    assert to_grammar("^a{3}b{1,5000}$", raw=False).text == "^a{3}b{1,5000}$"
    assert to_grammar("^a{1,255}$", raw=True).text == "^a{1,255}$", "a raw value has no such fault"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)).map(lambda pair: (min(pair), max(pair))), max_size=5)
)
def test_ranges_are_complemented_and_subtracted_as_sets_are(pairs: list[tuple[int, int]]) -> None:
    ranges = merged(pairs)
    inside = {code for low, high in pairs for code in range(low, high + 1)}
    for code in range(310):
        assert holds(ranges, code) == (code in inside)
        assert holds(complement(ranges), code) == (code not in inside)
        assert holds(minus(ranges, ((100, 200),)), code) == (code in inside and not 100 <= code <= 200)


def test_a_translated_pattern_is_a_python_pattern() -> None:
    assert re.fullmatch(to_grammar("^[a-z]{2}-\\d$", raw=True).text or "", "ab-1")
