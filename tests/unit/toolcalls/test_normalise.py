"""What becomes of a schema on its way into a grammar, and what is reported."""

from typing import Any

import pytest

from prime_inference.toolcalls.dialect import explicit
from prime_inference.toolcalls.errors import Unreadable
from prime_inference.toolcalls.findings import Effect
from prime_inference.toolcalls.normalise import Normalised, normalise


def of(**properties: Any) -> Normalised:
    return normalise(explicit({"type": "object", "properties": properties}))


def prop(schema: Any) -> Any:
    return of(a=schema).schema["properties"]["a"]


def looser(result: Normalised) -> set[str]:
    return {finding.keyword for finding in result.findings if finding.effect is Effect.LOOSER}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": "string", "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "dict", "properties": {}}, {"type": "object", "additionalProperties": True}),
        ({"type": "float"}, {"type": "number"}),
        ({"type": "any"}, {}),
        ({"type": None}, {}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": False}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "minimum": 0.5, "maximum": 3.5}, {"type": "integer", "minimum": 1, "maximum": 3}),
        ({"const": 5}, {"enum": [5]}),
        ({"type": "string", "enum": ["a", 5, None]}, {"enum": ["a"]}),
        (
            {"allOf": [{"type": "string", "minLength": 2}], "maxLength": 5},
            {"type": "string", "minLength": 2, "maxLength": 5},
        ),
        ({"allOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]}, {"type": "integer", "minimum": 3}),
        ({"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.5}, {"enum": [0, 0.5, 1]}),
        (
            {"type": "integer", "not": {"const": 3}},
            {"anyOf": [{"type": "integer", "maximum": 2}, {"type": "integer", "minimum": 4}]},
        ),
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, {"type": "string", "pattern": "^[a-z]{1,3}$"}),
        (
            {"type": "array", "items": [{"type": "integer"}]},
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": {}},
        ),
    ],
)
def test_a_property_is_said_in_the_words_that_the_grammar_gets_right(given: Any, wanted: Any) -> None:
    assert prop(given) == wanted
    assert looser(of(a=given)) == set()


def test_annotations_stay_since_the_model_reads_them() -> None:
    assert prop({"type": ["string", "null"], "description": "why", "default": None})["description"] == "why"
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/S", "title": "T"}},
        "$defs": {"S": {"title": "S"}},
    }
    assert normalise(schema).schema["properties"]["a"]["title"] == "T"


def test_references_are_inlined_and_their_siblings_hold_too() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/S", "minLength": 3, "description": "d"},
            "b": {"$ref": "#/definitions/x~1y"},
        },
        "$defs": {"S": {"type": "string", "maxLength": 9}},
        "definitions": {"x/y": {"type": "integer"}},
    }
    properties = normalise(explicit(schema)).schema["properties"]
    assert properties["a"] == {"type": "string", "minLength": 3, "maxLength": 9, "description": "d"}
    assert properties["b"] == {"type": "integer"}


def test_anchors_and_ids_of_the_same_document_are_references_too() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#here"}, "b": {"$ref": "urn:there"}},
        "$defs": {"x": {"$anchor": "here", "type": "integer"}, "y": {"$id": "urn:there", "type": "boolean"}},
    }
    properties = normalise(schema).schema["properties"]
    assert properties == {"a": {"type": "integer"}, "b": {"type": "boolean"}}


def test_a_recursive_part_is_hoisted_once_and_stays_exact() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}
    result = normalise({"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": node}})
    inner = {"type": "object", "properties": {"next": {"$ref": "#/$defs/part0"}}}
    assert result.schema["properties"]["n"] == inner
    assert result.schema["$defs"] == {"part0": inner}
    assert result.findings == ()


def test_a_root_that_refers_to_itself_is_written_out_once_inside() -> None:
    result = normalise({"type": "object", "properties": {"r": {"$ref": "#"}}})
    assert result.schema["properties"]["r"]["properties"]["r"] == {"$ref": "#/$defs/part0"}


def test_a_reference_that_is_its_own_target_is_refused() -> None:
    with pytest.raises(Unreadable, match="without end"):
        normalise({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}})


def test_a_schema_too_large_to_write_out_keeps_its_references() -> None:
    wide = {f"p{i}": {"$ref": f"#/$defs/l{1}"} for i in range(8)}
    definitions: dict[str, Any] = {
        f"l{level}": {"type": "object", "properties": {f"p{i}": {"$ref": f"#/$defs/l{level + 1}"} for i in range(8)}}
        for level in range(1, 8)
    }
    definitions["l8"] = {"type": "integer"}
    result = normalise({"type": "object", "properties": wide, "$defs": definitions})
    assert result.schema["properties"]["p0"]["properties"]["p0"]["$ref"].startswith("#/$defs/part")
    assert len(result.schema["$defs"]) == 7


def test_keywords_beside_any_of_hold_in_every_alternative() -> None:
    result = prop(
        {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "anyOf": [{"required": ["x"]}, {"maxProperties": 0}],
        }
    )
    assert [branch.get("required") for branch in result["anyOf"]] == [["x"], None]
    assert all("x" in branch["properties"] for branch in result["anyOf"])


def test_one_of_is_exact_where_the_alternatives_exclude_each_other() -> None:
    tagged = [{"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]} for k in "ab"]
    assert looser(of(a={"oneOf": tagged})) == set()
    keys = {"type": "object", "properties": {"x": {}, "y": {}}, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]}
    assert looser(of(a=keys)) == set()
    assert [list(branch["properties"]) for branch in prop(keys)["anyOf"]] == [["x"], ["y"]]
    assert looser(of(a={"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]})) == {"oneOf"}


def test_dependent_keys_and_a_condition_on_an_enum_become_alternatives() -> None:
    card = {"type": "object", "properties": {"card": {}, "cvc": {}}, "dependentRequired": {"card": ["cvc"]}}
    assert looser(of(a=card)) == set()
    assert [(list(b["properties"]), b.get("required")) for b in prop(card)["anyOf"]] == [
        (["cvc"], None),
        (["card", "cvc"], ["card", "cvc"]),
    ]
    mode = {
        "type": "object",
        "properties": {"m": {"enum": ["a", "b"]}, "x": {}},
        "required": ["m"],
        "if": {"properties": {"m": {"const": "b"}}},
        "then": {"required": ["x"]},
    }
    assert looser(of(a=mode)) == set()
    assert [(b["properties"]["m"], b["required"]) for b in prop(mode)["anyOf"]] == [
        ({"enum": ["b"]}, ["m", "x"]),
        ({"enum": ["a"]}, ["m"]),
    ]


@pytest.mark.parametrize(
    ("given", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"const": 1}}, "contains"),
        ({"type": "string", "not": {"minLength": 3}}, "not"),
        ({"type": "number", "multipleOf": 0.1}, "multipleOf"),
        ({"type": "integer", "multipleOf": 1e-320}, "multipleOf"),
        ({"type": "string", "pattern": "(?=x)y"}, "pattern"),
        ({"type": "string", "format": "regex"}, "format"),
        ({"type": "integer", "maximum": 2**60}, "maximum"),
        ({"type": "string", "minLength": 10**6}, "minLength"),
        ({"type": "object", "properties": {"x": {"type": "string"}}, "if": {"required": ["x"]}, "then": {}}, "if"),
    ],
)
def test_what_the_grammar_cannot_hold_is_reported(given: Any, keyword: str) -> None:
    assert looser(of(a=given)) == {keyword}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"$ref": "#/$defs/nope"}, "/properties/a/$ref"),
        ({"$ref": "https://example.com/s.json"}, "/properties/a/$ref"),
        ({"enum": []}, "/properties/a/enum"),
        ({"type": "colour"}, "/properties/a/type"),
        ({"type": "object", "properties": ["x"]}, "/properties/a/properties"),
        ({"type": "object", "required": "x"}, "/properties/a/required"),
        ({"type": "string", "minLength": "3"}, "/properties/a/minLength"),
        ("string", "/properties/a"),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(given: Any, path: str) -> None:
    with pytest.raises(Unreadable) as refusal:
        of(a=given)
    assert refusal.value.path == path


@pytest.mark.parametrize(
    "impossible",
    [
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "object", "properties": {"x": False}, "required": ["x"]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {"x": {}}, "minProperties": 2, "additionalProperties": False},
        False,
    ],
)
def test_what_nothing_fits_is_left_out_when_optional_and_refused_when_required(impossible: Any) -> None:
    result = of(a=impossible, b={"type": "string"})
    assert list(result.schema["properties"]) == ["b"]
    with pytest.raises(Unreadable, match=r"no arguments could satisfy|allows none|nothing fits"):
        normalise({"type": "object", "properties": {"a": impossible}, "required": ["a"]})


def test_an_empty_schema_is_a_function_without_parameters() -> None:
    assert normalise({}).schema == {"type": "object", "properties": {}}
    assert normalise({"type": "object"}).schema == {"type": "object"}


def test_arguments_that_are_no_object_are_refused() -> None:
    with pytest.raises(Unreadable, match="an object"):
        normalise({"type": "string"})


def test_a_required_key_that_is_not_declared_is_declared() -> None:
    assert prop({"type": "object", "properties": {"x": {}}, "required": ["y"]})["properties"] == {"x": {}, "y": {}}


ENDS_A_VALUE = ["x</arg_value><arg_key>", "</arg_value></tool_call>", "</arg_value>\n </tool_call>y"]


@pytest.mark.parametrize("bad", [*ENDS_A_VALUE, {"a": ENDS_A_VALUE[2]}, [ENDS_A_VALUE[0]]])
def test_a_value_that_a_reader_would_take_for_its_end_is_not_offered(bad: Any) -> None:
    result = of(a={"enum": [bad, "y</arg_value> z"]})
    assert result.schema["properties"]["a"] == {"enum": ["y</arg_value> z"]}
    assert [finding.effect for finding in result.findings] == [Effect.NARROWER]
    with pytest.raises(Unreadable, match="no arguments could satisfy"):
        normalise({"type": "object", "properties": {"a": {"const": bad}}, "required": ["a"]})


def test_a_key_that_holds_the_end_of_a_key_is_not_offered() -> None:
    result = of(**{"a</arg_key>b": {}, "c": {}})
    assert list(result.schema["properties"]) == ["c"]
    inside = {"type": "object", "properties": {"a</arg_key>b": {}}}
    assert of(a=inside).schema["properties"]["a"] == inside, "inside JSON a key is a string like any other"
    with pytest.raises(Unreadable, match="no arguments could satisfy"):
        normalise({"type": "object", "properties": {"a</arg_key>b": {}}, "required": ["a</arg_key>b"]})


LOOPS = {
    "A": {"$ref": "#/$defs/A"},
    "B": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/B"}]},
    "C": {"allOf": [{"$ref": "#/$defs/D"}]},
    "D": {"$ref": "#/$defs/C"},
}


@pytest.mark.parametrize("name", "ABC")
@pytest.mark.parametrize("nested", [False, True])
def test_a_reference_that_leads_to_itself_without_a_step_inside_is_refused(name: str, nested: bool) -> None:
    """Inside JSON it was once hoisted like any recursion, into a rule that is only itself."""
    loop: dict[str, Any] = {"$ref": f"#/$defs/{name}"}
    part = {"type": "object", "properties": {"b": {"type": "array", "items": loop}}} if nested else loop
    with pytest.raises(Unreadable, match=r"^/properties/a.*\$ref.* refers to itself without end"):
        normalise({"type": "object", "properties": {"a": part}, "$defs": LOOPS})


def test_bounds_that_cross_on_a_required_key_are_named_with_their_place() -> None:
    crossed = {"type": "integer", "minimum": 5, "maximum": 1}
    inner = {"type": "object", "properties": {"b/c": crossed}, "required": ["b/c"]}
    with pytest.raises(Unreadable, match="no arguments could satisfy") as refusal:
        normalise({"type": "object", "properties": {"a": inner}, "required": ["a"]})
    assert refusal.value.path == "/properties/a/properties/b~1c"


def test_a_required_property_that_nothing_fits_is_named() -> None:
    """Seen in BFCL: an enumeration of the members' values stands beside the list's type."""
    metrics = {"type": "array", "items": {"type": "string"}, "enum": ["buzz", "trust"]}
    inner = {"type": "object", "properties": {"metrics": metrics}, "required": ["metrics"]}
    with pytest.raises(Unreadable, match="nothing fits this required property") as raised:
        normalise({"type": "object", "properties": {"of": inner}, "required": ["of"]})
    assert raised.value.path == "/properties/of/properties/metrics"
    normalise({"type": "object", "properties": {"of": inner}})
