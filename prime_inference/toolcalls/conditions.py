"""Keywords that make one part of a value depend on another, written out as alternatives where that is exact.

`dependentRequired` becomes "without the key, or with what it needs"; `if` on a property that is an enum becomes one
alternative per answer; `not` takes away an enum's values, a type, a required key or single integers. Whatever has
no such form is reported and left to the judge.
"""

from collections.abc import Callable
from typing import Any

from prime_inference.toolcalls.combine import ANNOTATIONS, Canonical, Report, intersect, union
from prime_inference.toolcalls.subschemas import Schema

Expand = Callable[[Schema], Canonical]
NOT_ENFORCED = "not enforced by the grammar"


def with_key(*names: str) -> dict[str, Any]:
    return {"type": "object", "required": list(names)}


def without_key(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: False}}


def apply_conditions(schema: dict[str, Any], base: Canonical, expand: Expand, report: Report) -> Canonical:
    """`base`, the rest of `schema` in canonical form, narrowed by the schema's conditions."""
    result = base
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, needed in dict(schema.get(keyword, {})).items():
            then = (
                with_key(name, *needed)
                if isinstance(needed, list)
                else intersect(with_key(name), expand(needed), report)
            )
            result = _only_objects(result, union([without_key(name), then]), report, keyword)
    if "if" in schema:
        result = _conditional(schema, result, expand, report)
    if "not" in schema:
        result = _negation(schema["not"], result, report)
    return result


def exclusive(branches: list[Any]) -> list[Any]:
    """`oneOf` over nothing but required keys: each alternative without the keys of the others."""
    names = [branch["required"][0] if _only_requires(branch) else None for branch in branches]
    if None in names or len(set(names)) < len(names):
        return branches
    return [
        {**branch, "properties": {other: False for other in names if other != name}}
        for name, branch in zip(names, branches, strict=True)
    ]


def exclusive_ranges(branches: list[Canonical], report: Report) -> list[Canonical] | None:
    """`oneOf` over integers with nothing but bounds: each alternative without the others' ranges. None for any
    other."""
    if not all(isinstance(branch, dict) and _is_range(branch) for branch in branches):
        return None
    result: list[Canonical] = []
    for branch in branches:
        alone: Canonical = branch
        for other in branches:
            if other is not branch and isinstance(other, dict):
                alone = intersect(alone, _outside(other), report)
        result.append(alone)
    return result


def _is_range(schema: dict[str, Any]) -> bool:
    bounds = {"minimum", "maximum"} & set(schema)
    return (
        schema.get("type") == "integer"
        and set(schema) - set(ANNOTATIONS) == {"type", *bounds}
        and all(schema[bound] == int(schema[bound]) for bound in bounds)
    )


def _outside(schema: dict[str, Any]) -> Canonical:
    sides: list[Canonical] = []
    if "minimum" in schema:
        sides.append({"type": "integer", "maximum": int(schema["minimum"]) - 1})
    if "maximum" in schema:
        sides.append({"type": "integer", "minimum": int(schema["maximum"]) + 1})
    return union(sides)


def _only_requires(branch: Any) -> bool:
    return isinstance(branch, dict) and set(branch) <= {"required", "type"} and len(branch.get("required", ())) == 1


def _only_objects(base: Canonical, condition: Canonical, report: Report, keyword: str) -> Canonical:
    """The condition on an object. A value that is none is free of it, which the grammar says only of pure objects."""
    if isinstance(base, dict) and base.get("type") == "object":
        return intersect(base, condition, report)
    report(keyword, NOT_ENFORCED)
    return base


def _conditional(schema: dict[str, Any], base: Canonical, expand: Expand, report: Report) -> Canonical:
    then, otherwise = schema.get("then", True), schema.get("else", True)
    name, values, required = _asked(schema["if"])
    known = base.get("properties", {}).get(name) if isinstance(base, dict) and base.get("type") == "object" else None
    if name is None or not isinstance(known, dict) or "enum" not in known:
        report("if", NOT_ENFORCED)
        return base
    yes = {"type": "object", "properties": {name: {"enum": [one for one in known["enum"] if one in values]}}}
    no = {"type": "object", "properties": {name: {"enum": [one for one in known["enum"] if one not in values]}}}
    present = with_key(name)
    answers: list[tuple[list[dict[str, Any]], Schema]] = [([yes, present], then), ([no, present], otherwise)]
    answers.append(([without_key(name)], otherwise if required else then))
    branches: list[Canonical] = []
    for parts, follows in answers:
        branch = base
        for part in (*parts, expand(follows)):
            empty = isinstance(part, dict) and part.get("properties", {}).get(name) == {"enum": []}
            branch = False if empty else intersect(branch, part, report)
        branches.append(branch)
    return union(branches)


def _asked(condition: Any) -> tuple[str | None, list[Any], bool]:
    """The property that an `if` asks about, the values it asks for, and whether it asks for the property to be
    there."""
    if not isinstance(condition, dict) or set(condition) - {"properties", "required", "type"}:
        return None, [], False
    properties = condition.get("properties", {})
    if len(properties) != 1 or condition.get("type", "object") != "object":
        return None, [], False
    name, asked = next(iter(properties.items()))
    if not isinstance(asked, dict) or set(asked) - {"const", "enum", "type"} or not {"const", "enum"} & set(asked):
        return None, [], False
    required = condition.get("required", [])
    values = [asked["const"]] if "const" in asked else asked["enum"]
    return (name, values, name in required) if set(required) <= {name} else (None, [], False)


def _negation(forbidden: Any, base: Canonical, report: Report) -> Canonical:
    if isinstance(forbidden, dict) and isinstance(base, dict):
        values = [forbidden["const"]] if set(forbidden) == {"const"} else forbidden.get("enum")
        if set(forbidden) in ({"const"}, {"enum"}) and isinstance(values, list):
            return _without_values(base, values, report)
        if set(forbidden) == {"type"}:
            return _without_types(base, forbidden["type"])
        if _only_requires(forbidden) and base.get("type") == "object":
            return intersect(base, without_key(forbidden["required"][0]), report)
    report("not", NOT_ENFORCED)
    return base


def _without_types(base: dict[str, Any], types: Any) -> Canonical:
    gone = set(types if isinstance(types, list) else [types])
    gone |= {"integer"} if "number" in gone else set()
    every = ("string", "number", "boolean", "null", "array", "object")
    branches = base.get("anyOf", [base] if base else [{"type": name} for name in every])
    return union([branch for branch in branches if not isinstance(branch, dict) or branch.get("type") not in gone])


def _without_values(base: dict[str, Any], values: list[Any], report: Report) -> Canonical:
    if "enum" in base:
        kept = [value for value in base["enum"] if value not in values]
        return {**base, "enum": kept} if kept else False
    whole = sorted({int(value) for value in values if isinstance(value, int) and not isinstance(value, bool)})
    if base.get("type") != "integer":
        report("not", NOT_ENFORCED)
        return base
    result: Canonical = base
    for value in whole:
        around: list[Canonical] = [{"type": "integer", "maximum": value - 1}, {"type": "integer", "minimum": value + 1}]
        result = intersect(result, union(around), report)
    return result
