"""A schema without references, allOf, oneOf or several types at once: the form that `combine` calculates with.

Local references are inlined. Where one leads back to a schema that is being written out, the target is hoisted once
into `$defs` and referred to, so that recursion stays exact. The properties of the arguments object start over: what
they refer to is always inlined there, since xgrammar would share one rule between a raw GLM value and the same part
inside JSON.
"""

from enum import StrEnum
from typing import Any

from prime_inference.toolcalls.combine import Canonical, Report, annotated, annotations, disjoint, intersect, union
from prime_inference.toolcalls.conditions import NOT_ENFORCED, apply_conditions, exclusive, exclusive_ranges
from prime_inference.toolcalls.draft7 import CountedValidator
from prime_inference.toolcalls.errors import Unreadable
from prime_inference.toolcalls.findings import Effect, Finding
from prime_inference.toolcalls.subschemas import Schema, escape, resolve

MOST_NODES = 4096
"""Schemas written out for one tool; Dynamo's builder stops at the same number. Past it, references are hoisted
instead."""


class Place(StrEnum):
    """Where in a GLM call a value stands, which decides how it is spelled."""

    ARGUMENTS = "arguments"
    """The arguments object itself: key and value pairs between markers."""
    VALUE = "value"
    """One argument's value: raw text for a string, else JSON."""
    JSON = "json"
    """Inside a value that is JSON."""


_INSIDE = {Place.ARGUMENTS: Place.VALUE, Place.VALUE: Place.JSON, Place.JSON: Place.JSON}
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "additionalItems", "contains", "uniqueItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ),
}
_KEYWORDS["integer"] = _KEYWORDS["number"]
_NEVER_HELD = (
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "uniqueItems",
)
"""Keywords that no grammar of ours enforces."""


_DESCENT = "inside"
"""In a stack of references: what follows is inside the value of what precedes. No pointer is this text."""


class TooLarge(Exception):
    """Written out in full, the schema has more than MOST_NODES parts."""


class Expansion:
    """One tool's parameters being brought into canonical form. `definitions` holds what was hoisted."""

    def __init__(self, root: Schema, hoist: bool) -> None:
        self.root = root
        self.hoist = hoist
        self.definitions: dict[str, Canonical] = {}
        self.findings: list[Finding] = []
        self.impossible: list[str] = []
        """Required properties that no value fits, the innermost first."""
        self._names: dict[str, str] = {}
        self._nodes = 0

    def expand(self, schema: Schema, path: str, stack: tuple[str, ...], place: Place) -> Canonical:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise TooLarge
        if isinstance(schema, bool):
            return {} if schema else False
        result = self._own(schema, path, stack, place)
        if "$ref" in schema:
            target = self._reference(schema["$ref"], path, stack, place)
            result = intersect(result, target, self._reporter(path))
        for index, branch in enumerate(schema.get("allOf", ())):
            part = self.expand(_with_type_of(schema, branch), f"{path}/allOf/{index}", stack, place)
            result = intersect(result, part, self._reporter(path))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                result = self._alternatives(schema, keyword, result, (path, stack, place))
        for keyword in _NEVER_HELD:
            if schema.get(keyword) not in (None, False):
                self._find(Effect.LOOSER, path, keyword, NOT_ENFORCED)
        return apply_conditions(
            schema,
            result,
            lambda part: self.expand(_with_type_of(schema, part), f"{path}/then", stack, place),
            self._reporter(path),
        )

    # ── references ───────────────────────────────────────────────────────────────────────────────────────────

    def _reference(self, reference: str, path: str, stack: tuple[str, ...], place: Place) -> Canonical:
        found = resolve(self.root, reference)
        if found is None:
            where = "leads nowhere" if reference.startswith("#") else "points outside the schema"
            raise Unreadable(f"{path}/$ref", f"{reference!r} {where}")
        target, pointer = found
        if pointer in stack:
            since = stack[len(stack) - 1 - stack[::-1].index(pointer) :]
            if _DESCENT not in since:
                raise Unreadable(f"{path}/$ref", f"{reference!r} refers to itself without end")
            return {"$ref": f"#/$defs/{self._hoisted(target, pointer)}"}
        if self.hoist and place is Place.JSON:
            return {"$ref": f"#/$defs/{self._hoisted(target, pointer)}"}
        return self.expand(target, path, (*stack, pointer), place)

    def _hoisted(self, target: Schema, pointer: str) -> str:
        name = self._names.get(pointer)
        if name is None:
            name = self._names[pointer] = f"part{len(self._names)}"
            self.definitions[name] = self.expand(target, pointer, (pointer,), Place.JSON)
        return name

    # ── alternatives ─────────────────────────────────────────────────────────────────────────────────────────

    def _alternatives(
        self, schema: dict[str, Any], keyword: str, base: Canonical, at: tuple[str, tuple[str, ...], Place]
    ) -> Canonical:
        path, stack, place = at
        stated = exclusive(schema[keyword]) if keyword == "oneOf" else schema[keyword]
        branches = [
            self.expand(_with_type_of(schema, branch), f"{path}/{keyword}/{index}", stack, place)
            for index, branch in enumerate(stated)
        ]
        joined = [intersect(base, branch, self._reporter(path)) for branch in branches]
        apart = exclusive_ranges(joined, self._reporter(path)) if keyword == "oneOf" else None
        if apart is not None:
            joined = apart
        elif keyword == "oneOf" and not disjoint(joined):
            self._find(Effect.LOOSER, path, "oneOf", "alternatives overlap, and a value of two of them gets through")
        return annotated(union(joined), annotations(base))

    # ── a schema's own keywords ──────────────────────────────────────────────────────────────────────────────

    def _own(self, schema: dict[str, Any], path: str, stack: tuple[str, ...], place: Place) -> Canonical:
        notes = annotations(schema)
        types = self._types(schema, path, place)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else list(schema["enum"])
            rest = {key: value for key, value in schema.items() if key in _OWN_BOUNDS or key == "type"}
            kept = [value for value in values if CountedValidator(rest).is_valid(value)]
            if "const" in schema and "enum" in schema:
                kept = [value for value in kept if value in schema["enum"]]
            return {"enum": kept, **notes} if kept else False
        if not types:
            return notes
        return annotated(union([self._typed(name, schema, path, stack, place) for name in types]), notes)

    def _types(self, schema: dict[str, Any], path: str, place: Place) -> list[str]:
        stated = schema.get("type")
        if stated is not None:
            return list(stated) if isinstance(stated, list) else [stated]
        implied = [
            name
            for name in ("object", "array", "string", "number")
            if any(keyword in schema for keyword in _KEYWORDS[name])
        ]
        if implied and not (place is Place.ARGUMENTS and implied == ["object"]):
            self._find(Effect.NARROWER, path, "type", f"none is stated, so {' or '.join(implied)} is taken")
        return implied

    def _typed(self, name: str, schema: dict[str, Any], path: str, stack: tuple[str, ...], place: Place) -> Canonical:
        result: dict[str, Any] = {"type": name}
        for keyword in _KEYWORDS.get(name, ()):
            if keyword in schema:
                result[keyword] = schema[keyword]
        if name == "object":
            return self._object(result, path, stack, place)
        if name == "array":
            return self._array(result, path, stack, place)
        return result

    def _object(self, result: dict[str, Any], path: str, stack: tuple[str, ...], place: Place) -> Canonical:
        inside = _INSIDE[place]
        below = () if place is Place.ARGUMENTS else (*stack, _DESCENT)
        for keyword in ("properties", "patternProperties"):
            if keyword in result:
                result[keyword] = {
                    name: self.expand(part, f"{path}/{keyword}/{escape(name)}", below, inside)
                    for name, part in result[keyword].items()
                }
        if "additionalProperties" in result:
            rest = result["additionalProperties"]
            result["additionalProperties"] = self.expand(rest, f"{path}/additionalProperties", below, inside)
        required = set(result.get("required", ()))
        lost = [name for name, part in result.get("properties", {}).items() if part is False and name in required]
        self.impossible += [f"{path}/properties/{escape(name)}" for name in lost]
        return False if lost else result

    def _array(self, result: dict[str, Any], path: str, stack: tuple[str, ...], place: Place) -> Canonical:
        result.pop("contains", None)
        result.pop("uniqueItems", None)
        after = result.pop("additionalItems", True)
        if isinstance(result.get("items"), list):
            result["prefixItems"], result["items"] = result["items"], after
        inside = _INSIDE[place] if place is not Place.ARGUMENTS else Place.JSON
        stack = (*stack, _DESCENT)
        if "prefixItems" in result:
            result["prefixItems"] = [
                self.expand(part, f"{path}/items/{index}", stack, inside)
                for index, part in enumerate(result["prefixItems"])
            ]
        if "items" in result:
            result["items"] = self.expand(result["items"], f"{path}/items", stack, inside)
        return result

    # ── reports ──────────────────────────────────────────────────────────────────────────────────────────────

    def _find(self, effect: Effect, path: str, keyword: str, reason: str) -> None:
        finding = Finding(effect, path, keyword, reason)
        if finding not in self.findings:
            self.findings.append(finding)

    def _reporter(self, path: str) -> Report:
        return lambda keyword, reason: self._find(Effect.LOOSER, path, keyword, reason)


def _with_type_of(parent: dict[str, Any], branch: Schema) -> Schema:
    """A branch that states no type has its parent's: it must hold beside it, and nothing has to be inferred."""
    if "type" not in parent or not isinstance(branch, dict) or "type" in branch or "$ref" in branch:
        return branch
    return {"type": parent["type"], **branch}


_OWN_BOUNDS = frozenset(keyword for name in ("string", "number") for keyword in _KEYWORDS[name])
"""What besides its type can rule out an enum's value."""
