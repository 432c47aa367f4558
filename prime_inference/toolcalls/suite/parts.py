"""Schemas of one value, each with values that fit it and values that do not: the alphabet of the generated tools.

What fits is known by construction, not by asking a validator, so that the validator is tested too. Objects come in
declared key order. Every construct that `docs/toolcalls.md` lists as mishandled somewhere has a maker here.
"""

import string
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

Json = Any
TEXTS = (
    "plain",
    "two words",
    "",
    "  padded  ",
    'a "quoted" word',
    "back\\slash",
    "line\nbreak\ttab",
    "&lt;b&gt; &amp; &quot;",
    "1 < 2 > 0",
    "<tool_call>x</tool_call>",
    "</tool_call>",
    "<think>no</think>",
    "</arg_val",
    "null",
    "true",
    "7",
    "-3.5e2",
    '{"k": 1}',
    "[1, 2]",
    "naïve café",
    "日本語テスト",
    "emoji 👩‍👩‍👧 end",
    "\u2028 separators \u2029",
    "def f(x):\n    return x  # done\n",
    "SELECT * FROM t WHERE a <> 'b';",
)
"""Texts that have gone wrong somewhere: white space, escapes, entities, markers, look-alikes of JSON, many-byte
text."""


@dataclass(frozen=True)
class Part:
    schema: Any
    fitting: tuple[Json, ...]
    """Empty when nothing fits: such a part is never required, and its key never written."""
    unfitting: tuple[Json, ...]
    definitions: tuple[tuple[str, Any], ...] = ()
    """Entries for the document's `$defs`, or for what `home` names."""
    home: str = "$defs"


def _word(random: Random) -> str:
    return "".join(random.choices(string.ascii_lowercase, k=random.randint(3, 8)))


def free_string(random: Random) -> Part:
    return Part({"type": "string"}, tuple(random.sample(TEXTS, 4)), ())


def bounded_string(random: Random) -> Part:
    low = random.randint(1, 4)
    high = low + random.randint(1, 5)
    schema = {"type": "string", "minLength": low, "maxLength": high}
    return Part(schema, ("é" * low, "x" * high), ("x" * (low - 1), "x" * (high + 1)))


def whole_number(random: Random) -> Part:
    low = random.randint(-50, 50)
    schema = {"type": "integer", "minimum": low, "maximum": low + 100}
    return Part(schema, (low, low + 7, low + 100), (low - 1, low + 101, low + 0.5, "seven", None, [low]))


def fractional_number(random: Random) -> Part:
    high = random.randint(1, 9)
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": high}
    return Part(schema, (0.5, high), (0, high + 0.25, -1.5, True, "0.5"))


def multiple(random: Random) -> Part:
    step = random.choice((2, 3, 5, 7))
    return Part({"type": "integer", "multipleOf": step}, (0, step, -4 * step), (step + 1, 1))


def fractional_bound(random: Random) -> Part:
    low = random.randint(0, 5)
    return Part({"type": "integer", "minimum": low + 0.5}, (low + 1, low + 9), (low, low - 3))


def boolean(random: Random) -> Part:
    return Part({"type": "boolean"}, (True, False), ("yes", 1, None))


def choice(random: Random) -> Part:
    words = [_word(random), _word(random) + ' "q"', "naïve", "a b"]
    return Part({"type": "string", "enum": words}, tuple(words), ("none of them", ""))


def mixed_choice(random: Random) -> Part:
    values = [_word(random), random.randint(2, 9), None, True]
    return Part({"enum": values}, tuple(values), ("other", 11, False))


def constant(random: Random) -> Part:
    value = random.choice((_word(random), random.randint(1, 99), {"k": 1}))
    return Part({"const": value}, (value,), ("something else", -1, {"k": 2}))


def anchored_pattern(random: Random) -> Part:
    return random.choice(
        (
            Part(
                {"type": "string", "pattern": "^[a-z]{2,4}-\\d{3}$"},
                ("ab-123", "abcd-000"),
                ("a-123", "ab-12", "abcde-123"),
            ),
            Part(
                {"type": "string", "pattern": "^[\\w.-]+@[\\w-]+\\.[a-z]+$"},
                ("a.b@c.de",),
                ("a@b", "@c.de", "a b@c.de"),
            ),
            Part({"type": "string", "pattern": "^[A-Z]+$", "maxLength": 3}, ("A", "ABC"), ("", "ABCD", "abc")),
            Part({"type": "string", "pattern": "^(GET|PUT)$|^DELETE$"}, ("GET", "DELETE"), ("get", "GETX", "XDELETE")),
        )
    )


def unanchored_pattern(random: Random) -> Part:
    return random.choice(
        (
            Part(
                {"type": "string", "pattern": "^https?://"}, ("http://x", "https://x/y?z=1"), ("ftp://x", "x http://y")
            ),
            Part({"type": "string", "pattern": "\\.py$"}, ("a.py", "dir/b c.py"), ("a.pyc", "py")),
            Part({"type": "string", "pattern": "[0-9]"}, ("a1", "1", "x 2 y"), ("abc", "")),
            Part({"type": "string", "pattern": "^foo|bar$"}, ("foox", "xbar"), ("xfoo", "barx")),
        )
    )


def unheld_pattern(random: Random) -> Part:
    """Patterns that xgrammar cannot compile: only the judge holds them."""
    return random.choice(
        (
            Part({"type": "string", "pattern": "^(?!tmp)[a-z]+$"}, ("abc",), ("tmpx", "A")),
            Part({"type": "string", "pattern": "^\\p{L}+$"}, ("naïve", "日本"), ("a1", "")),
            Part({"type": "string", "pattern": "^(a|b)\\1$"}, ("aa", "bb"), ("ab", "a")),
        )
    )


def formatted(random: Random) -> Part:
    return random.choice(
        (
            Part({"type": "string", "format": "date"}, ("2026-11-29",), ("2026-13-29", "tomorrow")),
            Part({"type": "string", "format": "date-time"}, ("2026-11-29T10:00:00Z",), ("2026-11-29", "10:00")),
            Part({"type": "string", "format": "email"}, ("a@example.com",), ("example.com", "a b@c.d")),
            Part({"type": "string", "format": "uuid"}, ("123e4567-e89b-12d3-a456-426614174000",), ("123e4567", "")),
        )
    )


def optional_type(random: Random) -> Part:
    low = random.randint(1, 9)
    return random.choice(
        (
            Part({"type": ["string", "null"]}, ("text", None, "null", '"null"'), (5, ["x"])[:0]),
            Part({"type": ["integer", "null"], "minimum": low}, (low, None), (low - 1, "five", 1.5)),
            Part({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, (3, None), ("x", [])),
            Part({"type": ["string", "integer"]}, ("seven", 7, "7"), ()),
        )
    )


def nullable(random: Random) -> Part:
    return random.choice(
        (
            Part({"type": "string", "nullable": True}, ("text", None), ()),
            Part({"type": "integer", "nullable": True}, (4, None), ("x", 1.5)),
            Part({"type": "array", "items": {"type": "integer"}, "nullable": True}, ([1], None), (["x"], 1)),
        )
    )


def foreign_type(random: Random) -> Part:
    return random.choice(
        (
            Part({"type": "float"}, (1.5, 2), ("x", None)),
            Part(
                {"type": "dict", "properties": {"k": {"type": "int"}}, "required": ["k"]}, ({"k": 1},), ({}, {"k": "v"})
            ),
            Part({"type": "list", "items": {"type": "bool"}}, ([True],), ([1], "x")),
            Part({"type": "tuple", "items": {"type": "str"}}, (["a"],), ([1],)),
            Part({"type": "any"}, ("x", 1, {"a": [None]}), ()),
        )
    )


def boolean_exclusive(random: Random) -> Part:
    low = random.randint(2, 9)
    schema = {"type": "integer", "minimum": low, "exclusiveMinimum": True}
    return Part(schema, (low + 1, low + 50), (low, low - 1))


def disjoint_one_of(random: Random) -> Part:
    circle = {
        "type": "object",
        "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
        "required": ["kind", "r"],
    }
    square = {
        "type": "object",
        "properties": {"kind": {"const": "square"}, "a": {"type": "number"}},
        "required": ["kind", "a"],
    }
    return random.choice(
        (
            Part(
                {"oneOf": [circle, square]},
                ({"kind": "circle", "r": 1.5}, {"kind": "square", "a": 2}),
                ({"kind": "circle"}, 1),
            ),
            Part({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, (4, True), (1.5, None)),
        )
    )


def overlapping_one_of(random: Random) -> Part:
    schema = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]}
    return Part(schema, (-5, 50), (5, "x"))


def any_of_beside(random: Random) -> Part:
    """Keywords beside anyOf, which xgrammar ignores."""
    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
        "anyOf": [{"required": ["x"]}, {"required": ["y"]}],
    }
    return Part(schema, ({"x": 1}, {"y": 2}, {"x": 1, "y": 2}), ({}, {"x": "one"}))


def all_of(random: Random) -> Part:
    base = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    more = {"type": "object", "properties": {"tag": {"type": "string", "minLength": 1}}, "required": ["tag"]}
    return random.choice(
        (
            Part(
                {"allOf": [base, more]},
                ({"id": 1, "tag": "x"},),
                ({"id": 1}, {"id": "1", "tag": "x"}, {"id": 1, "tag": ""}),
            ),
            Part({"allOf": [{"type": "integer", "minimum": 3}], "maximum": 9}, (3, 9), (2, 10)),
        )
    )


def nested(random: Random) -> Part:
    schema = {
        "type": "object",
        "properties": {
            "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            "lines": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "geo": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
        },
        "required": ["lines"],
        "additionalProperties": False,
    }
    return Part(
        schema,
        ({"lines": [random.choice(TEXTS)]}, {"zip": "01234", "lines": ["a", "b"], "geo": {"lat": 1.5}}),
        ({}, {"lines": []}, {"zip": "1", "lines": ["a"]}, {"lines": ["a"], "geo": {}}, {"lines": ["a"], "no": 1}),
    )


def listed(random: Random) -> Part:
    high = random.randint(2, 4)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": high}
    return Part(schema, ([1], list(range(high))), ([], list(range(high + 1)), ["1"], 1))


def open_list(random: Random) -> Part:
    return Part({"type": "array"}, ([], [1, "a", {"b": None}], [[True]]), ("x", {"a": 1}))


def tuple_list(random: Random) -> Part:
    schema = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}
    return Part(schema, ([1, "x"], [1]), (["x", 1], [1, "x", 2]))


def unique_list(random: Random) -> Part:
    return Part({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ([1, 2], []), ([1, 1], ["x"]))


def open_object(random: Random) -> Part:
    schema = random.choice(
        ({"type": "object"}, {"type": "object", "properties": {}}, {"type": "object", "additionalProperties": True})
    )
    return Part(schema, ({}, {"any key": [1, "a"], "b": None}), ([], "x"))


def mapping(random: Random) -> Part:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}
    return Part(schema, ({"a b": 1}, {"x": 1, "y": 2}), ({}, {"a": "1"}))


def patterned_keys(random: Random) -> Part:
    schema = {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False}
    return Part(schema, ({"x_a": 1}, {}), ({"x_a": "1"}, {"y": 1}))


def forbidden(random: Random) -> Part:
    schema = {"type": "integer", "not": {"const": 13}}
    return Part(schema, (12, 14), (13, "x"))


def dependent(random: Random) -> Part:
    schema = {
        "type": "object",
        "properties": {"card": {"type": "string"}, "cvc": {"type": "string"}},
        "dependentRequired": {"card": ["cvc"]},
    }
    return Part(schema, ({}, {"cvc": "1"}, {"card": "1", "cvc": "2"}), ({"card": "1"}, {"card": 1, "cvc": "2"}))


def conditional(random: Random) -> Part:
    schema = {
        "type": "object",
        "properties": {"mode": {"enum": ["a", "b"]}, "extra": {"type": "integer"}},
        "required": ["mode"],
        "if": {"properties": {"mode": {"const": "b"}}},
        "then": {"required": ["extra"]},
    }
    return Part(schema, ({"mode": "a"}, {"mode": "b", "extra": 1}), ({"mode": "b"}, {"mode": "c"}))


def undeclared_required(random: Random) -> Part:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["y"]}
    return Part(schema, ({"y": 1}, {"x": 1, "y": "any"}), ({}, {"x": 1}))


def number_steps(random: Random) -> Part:
    return Part({"type": "number", "multipleOf": 0.5}, (1.5, 2), (0.3, "x"))


def referred_object(random: Random) -> Part:
    name = f"Address{random.randint(0, 9)}"
    target = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "no": {"type": "integer"}},
        "required": ["city"],
    }
    schema = random.choice(({"$ref": f"#/$defs/{name}"}, {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}))
    absent = (None,) if "anyOf" in schema else ()
    return Part(schema, ({"city": "Köln"}, {"city": "x", "no": 4}, *absent), ({}, {"city": 1}), ((name, target),))


def shared_string(random: Random) -> Part:
    """One string definition used for a value and inside a list: xgrammar 0.2.7 would share one raw rule."""
    schema = {
        "type": "object",
        "properties": {"one": {"$ref": "#/$defs/Label"}, "many": {"type": "array", "items": {"$ref": "#/$defs/Label"}}},
        "required": ["many"],
    }
    target = {"type": "string", "minLength": 2}
    return Part(
        schema, ({"many": ["ab"]}, {"one": "cd", "many": []}), ({"many": ["a"]}, {"many": [1]}), (("Label", target),)
    )


def recursive(random: Random) -> Part:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
        "required": ["v"],
    }
    deep = {"v": 1, "next": {"v": 2, "next": {"v": 3, "next": None}}}
    return Part({"$ref": "#/$defs/Node"}, ({"v": 1}, deep), ({}, {"v": 1, "next": {"next": None}}), (("Node", node),))


def anchored_reference(random: Random) -> Part:
    target = {"$anchor": "point", "type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    return Part({"$ref": "#point"}, ({"x": 1.5},), ({}, {"x": "1"}), (("Point", target),))


MAKERS: dict[str, Callable[[Random], Part]] = {
    maker.__name__: maker
    for maker in (
        *(free_string, bounded_string, whole_number, fractional_number, multiple, fractional_bound, boolean, choice),
        *(mixed_choice, constant, anchored_pattern, unanchored_pattern, unheld_pattern, formatted, optional_type),
        *(nullable, foreign_type, boolean_exclusive, disjoint_one_of, overlapping_one_of, any_of_beside, all_of),
        *(nested, listed, open_list, tuple_list, unique_list, open_object, mapping, patterned_keys, forbidden),
        *(dependent, conditional, undeclared_required, number_steps, referred_object, shared_string, recursive),
        *(anchored_reference,),
    )
}
"""What everyday tools hold, by name. `edges` and `wholes` have the rest; `generate` says how often each comes."""
