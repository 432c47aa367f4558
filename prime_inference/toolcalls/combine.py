"""The algebra of canonical schemas: intersection, union, and whether two can ever hold at once.

A canonical schema is one of: False (nothing fits); `{"$ref"}` (a recursive part, hoisted); `{"anyOf"}` of simple ones;
`{"enum"}`; a simple schema with exactly one `type`; or no constraint at all. Annotations may stand beside any of them.
The grammar needs this form because xgrammar ignores every keyword beside `anyOf`, `oneOf`, `$ref` or a longer `allOf`.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

from prime_inference.toolcalls.draft7 import CountedValidator

ANNOTATIONS = ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")
MOST_BRANCHES = 64
"""Of one union. A product of unions that is larger is not multiplied out: the grammar would grow past any use."""

Canonical = dict[str, Any] | bool
Report = Callable[[str, str], None]
"""Called with the keyword and the reason when the result is looser than the intersection."""

_LARGER = ("minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum")
_SMALLER = ("maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum")
_EITHER = ("pattern", "format", "multipleOf", "propertyNames")


def annotations(schema: Canonical) -> dict[str, Any]:
    return {key: schema[key] for key in ANNOTATIONS if key in schema} if isinstance(schema, dict) else {}


def bare(schema: Canonical) -> Canonical:
    return (
        {key: value for key, value in schema.items() if key not in ANNOTATIONS} if isinstance(schema, dict) else schema
    )


def annotated(schema: Canonical, notes: dict[str, Any]) -> Canonical:
    """`notes` added where the schema has none of its own; False stays False."""
    return {**notes, **schema} if isinstance(schema, dict) else schema


def union(branches: list[Canonical]) -> Canonical:
    flat: list[Canonical] = []
    for branch in branches:
        inner = branch["anyOf"] if isinstance(branch, dict) and "anyOf" in branch else [branch]
        for one in inner:
            if one is not False and bare(one) not in [bare(other) for other in flat]:
                flat.append(one)
    if not flat:
        return False
    if any(bare(one) == {} for one in flat):
        return {}
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


def intersect(left: Canonical, right: Canonical, report: Report) -> Canonical:
    if left is False or right is False:
        return False
    assert isinstance(left, dict)
    assert isinstance(right, dict)
    notes = {**annotations(right), **annotations(left)}
    both = _intersect(left, right, report)
    return {**both, **notes} if isinstance(both, dict) else both


def _intersect(left: dict[str, Any], right: dict[str, Any], report: Report) -> Canonical:
    if not bare(left) or not bare(right) or bare(left) == bare(right):
        return left if bare(left) else right
    if "anyOf" in left or "anyOf" in right:
        lefts, rights = left.get("anyOf", [left]), right.get("anyOf", [right])
        if len(lefts) * len(rights) > MOST_BRANCHES:
            report("anyOf", "the product of the alternatives is too large to write out")
            return left
        return union([intersect(one, other, report) for one in lefts for other in rights])
    if "$ref" in left or "$ref" in right:
        report("$ref", "a recursive reference cannot be narrowed by what stands beside it")
        return right if "$ref" in left else left
    if "enum" in left or "enum" in right:
        values, other = (left["enum"], right) if "enum" in left else (right["enum"], left)
        kept = [value for value in values if _fits(value, other)]
        return {"enum": kept} if kept else False
    return _same_type(left, right, report)


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    known = {name: True for name in _hoisted(schema)}
    return bool(CountedValidator({**schema, "$defs": known}).is_valid(value))


def _hoisted(schema: Any) -> set[str]:
    """Names of hoisted parts below `schema`; their bodies are not known here, so that anything fits them."""
    if isinstance(schema, dict):
        own = {schema["$ref"].rsplit("/", 1)[-1]} if isinstance(schema.get("$ref"), str) else set()
        return own.union(*(_hoisted(value) for value in schema.values()))
    return set().union(*(_hoisted(value) for value in schema)) if isinstance(schema, list) else set()


def _same_type(left: dict[str, Any], right: dict[str, Any], report: Report) -> Canonical:
    types = {left["type"], right["type"]}
    if len(types) > 1 and types != {"integer", "number"}:
        return False
    result: dict[str, Any] = {"type": "integer" if len(types) > 1 else left["type"]}
    for keyword in (*_LARGER, *_SMALLER):
        bounds = [side[keyword] for side in (left, right) if keyword in side]
        if bounds:
            result[keyword] = max(bounds) if keyword in _LARGER else min(bounds)
    for keyword in _EITHER:
        values = [side[keyword] for side in (left, right) if keyword in side]
        if values:
            result[keyword] = values[0]
            if values[0] != values[-1]:
                report(keyword, "two of them hold at once, and only the first is enforced")
    if result["type"] == "object":
        return _objects(left, right, result, report)
    if result["type"] == "array":
        return _arrays(left, right, result, report)
    return result


def _objects(left: dict[str, Any], right: dict[str, Any], result: dict[str, Any], report: Report) -> Canonical:
    properties: dict[str, Canonical] = {}
    sides = (left, right)
    for name in dict.fromkeys([*left.get("properties", {}), *right.get("properties", {})]):
        here = [_property(side, name) for side in sides]
        properties[name] = intersect(here[0], here[1], report)
    required = list(dict.fromkeys([*left.get("required", ()), *right.get("required", ())]))
    if any(properties.get(name, True) is False for name in required):
        return False
    if properties or "properties" in left or "properties" in right:
        result["properties"] = properties
    if required:
        result["required"] = required
    patterns = {**left.get("patternProperties", {}), **right.get("patternProperties", {})}
    if patterns:
        result["patternProperties"] = patterns
    rests = [side["additionalProperties"] for side in sides if "additionalProperties" in side]
    if rests:
        result["additionalProperties"] = rests[0] if len(rests) == 1 else intersect(rests[0], rests[1], report)
    return result


def _property(side: dict[str, Any], name: str) -> Canonical:
    """What one side says of a property: its own schema, else what it says of undeclared ones."""
    if name in side.get("properties", {}):
        declared: Canonical = side["properties"][name]
        return declared
    if side.get("patternProperties"):
        return {}
    rest = side.get("additionalProperties", {})
    return {} if rest is True else rest


def _arrays(left: dict[str, Any], right: dict[str, Any], result: dict[str, Any], report: Report) -> Canonical:
    prefixes = [side["prefixItems"] for side in (left, right) if "prefixItems" in side]
    if len(prefixes) > 1:
        report("prefixItems", "two of them hold at once, and only the first is enforced")
    if prefixes:
        result["prefixItems"] = prefixes[0]
    items = [side["items"] for side in (left, right) if "items" in side]
    if items:
        result["items"] = items[0] if len(items) == 1 else intersect(items[0], items[1], report)
    return result


# ── can two alternatives hold at once? ───────────────────────────────────────────────────────────────────────


def disjoint(branches: list[Canonical]) -> bool:
    """True only when no value fits two of them: then `oneOf` and `anyOf` say the same."""
    singles = [branch["anyOf"] if isinstance(branch, dict) and "anyOf" in branch else [branch] for branch in branches]
    return all(_apart(one, other) for left, right in combinations(singles, 2) for one in left for other in right)


def _apart(left: Canonical, right: Canonical) -> bool:
    if left is False or right is False:
        return True
    assert isinstance(left, dict)
    assert isinstance(right, dict)
    if "enum" in left or "enum" in right:
        values, other = (left["enum"], right) if "enum" in left else (right["enum"], left)
        return "$ref" not in other and not any(_fits(value, other) for value in values)
    types = {left.get("type"), right.get("type")}
    if None in types or types == {"integer", "number"}:
        return False
    return len(types) > 1 or (types == {"object"} and _objects_apart(left, right))


def _objects_apart(left: dict[str, Any], right: dict[str, Any]) -> bool:
    mine, theirs = left.get("properties", {}), right.get("properties", {})
    needed, wanted = set(left.get("required", ())), set(right.get("required", ()))
    if any(theirs.get(name) is False for name in needed) or any(mine.get(name) is False for name in wanted):
        return True
    return any(_apart(mine.get(name, {}), theirs.get(name, {})) for name in needed & wanted) or _excluded(left, right)


def _excluded(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """One side requires a property that the other, closed, does not have."""
    for one, other in ((left, right), (right, left)):
        closed = other.get("additionalProperties") is False and not other.get("patternProperties")
        if closed and set(one.get("required", ())) - set(other.get("properties", {})):
            return True
    return False
