"""A tool's parameters as a grammar can hold them, with a report of what it cannot.

`normalise` takes the schema in JSON Schema's own words (`dialect.explicit`) and returns one that xgrammar 0.2.7
compiles and enforces as written. What each rewrite is for stands beside it; most answer a fault of xgrammar's that
was seen, not read of (`docs/toolcalls.md` lists them). Two things are policy and not reported per schema: an object
that declares properties and says nothing of others takes no others, and properties come in declared order.
"""

import json
import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import ceil, floor
from typing import Any

from prime_inference.toolcalls.canonical import Expansion, Place, TooLarge
from prime_inference.toolcalls.combine import ANNOTATIONS, Canonical, bare
from prime_inference.toolcalls.errors import Unreadable
from prime_inference.toolcalls.findings import Effect, Finding
from prime_inference.toolcalls.glm import CALL_END, KEY, KEY_END, VALUE_END
from prime_inference.toolcalls.grammar_patterns import to_grammar, with_lengths
from prime_inference.toolcalls.subschemas import Schema, escape

MOST_INTEGER = 2**53
"""Beyond it xgrammar's bounds are no longer exact ("Integer exceeds maximum limit"), and JSON readers round anyway."""
MOST_COUNT = 4096
"""Largest minLength, minItems or minProperties that is written into a grammar; each unit costs a rule."""
MOST_STEPS = 128
"""Numbers that a bounded `multipleOf` is written out to, such as a temperature from 0 to 2 in steps of 0.1."""
GRAMMAR_FORMATS = frozenset(
    ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer", "uri", "uuid")
)
"""Formats that xgrammar enforces; the judge checks more of them."""
_ENDS_A_VALUE = re.compile(rf"{VALUE_END}(?:\\[nrt]|\s)*(?:{KEY}|{CALL_END})")
"""Within a value, or in the JSON of one: what a reader takes for the value's end."""


@dataclass(frozen=True)
class Normalised:
    schema: dict[str, Any]
    findings: tuple[Finding, ...]


def normalise(parameters: Schema) -> Normalised:
    """Raises `Unreadable` with the place when no grammar can stand for the schema at all."""
    if parameters is True or (isinstance(parameters, dict) and not bare(parameters)):
        # A function without parameters; xgrammar would take `{}` for a body of free text.
        return Normalised({"type": "object", "properties": {}}, ())
    try:
        expansion = Expansion(parameters, hoist=False)
        body = expansion.expand(parameters, "", (), Place.ARGUMENTS)
    except TooLarge:
        expansion = Expansion(parameters, hoist=True)
        try:
            body = expansion.expand(parameters, "", (), Place.ARGUMENTS)
        except TooLarge as error:
            raise Unreadable("", "the schema is too large") from error
    finish = _Finish(expansion.findings)
    if body is False and expansion.impossible:
        raise Unreadable(expansion.impossible[0], "nothing fits this required property")
    schema = finish.arguments(body)
    definitions = {
        name: finish.part(part, f"/$defs/{name}", Place.JSON) for name, part in expansion.definitions.items()
    }
    if definitions:
        schema["$defs"] = {name: False if part is None else part for name, part in definitions.items()}
    return Normalised(schema, tuple(finish.findings))


class _Finish:
    """The last step: each part in the words that xgrammar gets right. None stands for a part that nothing fits."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        self.impossible: list[str] = []
        """Required properties that no value fits, the innermost first."""

    def arguments(self, body: Canonical) -> dict[str, Any]:
        branches = body.get("anyOf", [body]) if isinstance(body, dict) else []
        objects = [branch for branch in branches if isinstance(branch, dict) and branch.get("type") == "object"]
        if not objects:
            raise Unreadable("", "the arguments of a function are an object, and this schema allows none")
        if len(objects) < len(branches):
            self._find(Effect.NARROWER, "", "type", "only the alternatives that are objects are offered")
        parts = [part for part in (self.part(branch, "", Place.ARGUMENTS) for branch in objects) if part is not None]
        if not parts:
            where = self.impossible[0] if self.impossible else ""
            raise Unreadable(where, "no arguments could satisfy this schema")
        notes = {key: value for key, value in body.items() if key in ANNOTATIONS} if isinstance(body, dict) else {}
        return {**notes, **(parts[0] if len(parts) == 1 else {"anyOf": parts})}

    def part(self, schema: Canonical, path: str, place: Place) -> dict[str, Any] | None:
        if not isinstance(schema, dict):
            return None
        if "anyOf" in schema:
            return self._alternatives(schema, path, place)
        by_type = {
            "string": self._string,
            "integer": self._number,
            "number": self._number,
            "array": self._array,
            "object": self._object,
        }
        if "enum" in schema:
            return self._enum(schema, path)
        finish = by_type.get(schema.get("type", ""))
        return finish(dict(schema), path, place) if finish else dict(schema)

    def _alternatives(self, schema: dict[str, Any], path: str, place: Place) -> dict[str, Any] | None:
        notes = {key: value for key, value in schema.items() if key in ANNOTATIONS}
        parts = [self.part(branch, path, place) for branch in schema["anyOf"]]
        kept = [part for part in parts if part is not None]
        if not kept:
            return None
        return {**notes, **(kept[0] if len(kept) == 1 else {"anyOf": kept})}

    def _enum(self, schema: dict[str, Any], path: str) -> dict[str, Any] | None:
        """xgrammar spells an object or a list of an enum without white space; written out, any spelling will do."""
        kept = [value for value in schema["enum"] if not _ENDS_A_VALUE.search(json.dumps(value))]
        if len(kept) < len(schema["enum"]):
            self._find(Effect.NARROWER, path, "enum", "a value that holds the end of a value has no spelling")
            schema = {**schema, "enum": kept}
        if not kept:
            return None
        scalars = [value for value in schema["enum"] if not isinstance(value, dict | list)]
        if len(scalars) == len(schema["enum"]):
            return dict(schema)
        notes = {key: value for key, value in schema.items() if key in ANNOTATIONS}
        parts = [_exactly(value) for value in schema["enum"] if isinstance(value, dict | list)]
        parts = [{"enum": scalars}, *parts] if scalars else parts
        return {**notes, **(parts[0] if len(parts) == 1 else {"anyOf": parts})}

    # ── strings ──────────────────────────────────────────────────────────────────────────────────────────────

    def _string(self, schema: dict[str, Any], path: str, place: Place) -> dict[str, Any] | None:
        shortest, longest = int(schema.get("minLength", 0)), schema.get("maxLength")
        if longest is not None and shortest > longest:
            return None
        self._cap(schema, "minLength", path)
        if "format" in schema and schema["format"] not in GRAMMAR_FORMATS:
            self._find(Effect.LOOSER, path, "format", f"{schema.pop('format')!r} is not enforced")
        if "pattern" in schema and "format" in schema:
            self._find(Effect.LOOSER, path, "format", f"{schema.pop('format')!r} is not enforced beside a pattern")
        if "pattern" in schema:
            self._pattern(schema, path, place)
        if ("pattern" in schema or "format" in schema) and ("minLength" in schema or "maxLength" in schema):
            self._find(Effect.LOOSER, path, "minLength", "length bounds are not enforced beside a pattern or format")
            schema.pop("minLength", None)
            schema.pop("maxLength", None)
        return schema

    def _pattern(self, schema: dict[str, Any], path: str, place: Place) -> None:
        told = to_grammar(schema["pattern"], raw=place is not Place.JSON)
        if told.text is None:
            del schema["pattern"]
            self._find(Effect.LOOSER, path, "pattern", told.looser)
            return
        schema["pattern"] = told.text
        if told.narrower:
            lost = "'<'" if place is not Place.JSON else "quotes, backslashes and control characters"
            self._find(Effect.NARROWER, path, "pattern", f"some characters ({lost}) are out of reach")
        bounded = with_lengths(told.text, int(schema.get("minLength", 0)), schema.get("maxLength"))
        if bounded is not None and ("minLength" in schema or "maxLength" in schema):
            schema.pop("minLength", None)
            schema.pop("maxLength", None)
            schema["pattern"] = bounded

    # ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────

    def _number(self, schema: dict[str, Any], path: str, _: Place) -> dict[str, Any] | None:
        whole = schema["type"] == "integer"
        steps = None if whole else _all_steps(schema)
        if steps is not None:
            notes = {key: value for key, value in schema.items() if key in ANNOTATIONS}
            return {**notes, "enum": steps} if steps else None
        step = schema.get("multipleOf")
        if step is not None and not (whole and step == int(step) and step > 0):
            del schema["multipleOf"]
            if not (whole and step > 0 and float(1 / step).is_integer()):
                self._find(Effect.LOOSER, path, "multipleOf", "enforced only for whole steps of an integer")
        if whole:
            _whole_bounds(schema)
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if abs(schema.get(keyword, 0)) > MOST_INTEGER:
                # A bound that no value a reader keeps exactly could break is no loss.
                del schema[keyword]
                self._find(Effect.LOOSER, path, keyword, f"bounds beyond {MOST_INTEGER} are not enforced")
        low = max(schema.get("minimum", -MOST_INTEGER), schema.get("exclusiveMinimum", -MOST_INTEGER))
        high = min(schema.get("maximum", MOST_INTEGER), schema.get("exclusiveMaximum", MOST_INTEGER))
        open_end = low in (schema.get("exclusiveMinimum"),) or high in (schema.get("exclusiveMaximum"),)
        return None if low > high or (low == high and open_end) else schema

    # ── arrays ───────────────────────────────────────────────────────────────────────────────────────────────

    def _array(self, schema: dict[str, Any], path: str, place: Place) -> dict[str, Any] | None:
        shortest, longest = schema.get("minItems", 0), schema.get("maxItems")
        if longest is not None and shortest > longest:
            return None
        self._cap(schema, "minItems", path)
        # xgrammar takes an array without `items` for the empty array.
        items = self.part(schema.get("items", {}), f"{path}/items", Place.JSON)
        prefix = [
            self.part(part, f"{path}/items/{index}", Place.JSON)
            for index, part in enumerate(schema.get("prefixItems", ()))
        ]
        if None in prefix:
            prefix = prefix[: prefix.index(None)]
            items = None
        if items is None:
            if shortest > len(prefix):
                return None
            if not prefix:
                schema = {
                    key: value for key, value in schema.items() if key not in ("items", "prefixItems", "minItems")
                }
                return {**schema, "items": {}, "maxItems": 0}
        schema["items"] = False if items is None else items
        if prefix:
            schema["prefixItems"] = prefix
        return schema

    # ── objects ──────────────────────────────────────────────────────────────────────────────────────────────

    def _object(self, schema: dict[str, Any], path: str, place: Place) -> dict[str, Any] | None:
        inside = Place.VALUE if place is Place.ARGUMENTS else Place.JSON
        rest = schema.pop("additionalProperties", None)
        required = schema.get("required", [])
        nothing_said = rest is None and not schema.get("properties") and not schema.get("patternProperties")
        if place is not Place.ARGUMENTS and nothing_said:
            rest = {}  # `"properties": {}` on a part means "anything": it is how "some object" is often written
        declared = dict(schema.get("properties", {}))
        for name in required:
            if name not in declared:
                if rest is False and not schema.get("patternProperties"):
                    return None
                # xgrammar ignores a required key that is not among the properties.
                declared[name] = rest if isinstance(rest, dict) else {}
        properties: dict[str, Any] = {}
        if any(part is False for part in declared.values()) and rest not in (None, False):
            self._find(Effect.LOOSER, path, "properties", "a forbidden key of an open object is not enforced")
        for name, part in declared.items():
            kept = self.part(part, f"{path}/properties/{escape(name)}", inside)
            if place is Place.ARGUMENTS and KEY_END in name:
                self._find(Effect.NARROWER, path, "properties", f"the key {name!r} has no spelling")
                kept = None
            if kept is None and name in required:
                self.impossible.append(f"{path}/properties/{escape(name)}")
                return None
            if kept is not None:
                properties[name] = kept
        says_nothing = rest is None and not ({"properties", "patternProperties"} & set(schema)) and not required
        if place is Place.ARGUMENTS and says_nothing:
            self._find(Effect.NARROWER, path, "type", "arguments that nothing is said of have identifiers for keys")
        elif properties or place is Place.ARGUMENTS:
            schema["properties"] = properties
        else:
            schema.pop("properties", None)
        self._undeclared(schema, rest, path, place)
        return self._counts(schema, path)

    def _undeclared(self, schema: dict[str, Any], rest: Canonical | None, path: str, place: Place) -> None:
        """additionalProperties, patternProperties and propertyNames."""
        inside = Place.VALUE if place is Place.ARGUMENTS else Place.JSON
        names = schema.pop("propertyNames", None)
        patterns: dict[str, Any] = {}
        for pattern, part in schema.pop("patternProperties", {}).items():
            told = to_grammar(pattern, raw=place is Place.ARGUMENTS)
            kept = self.part(part, f"{path}/patternProperties/{escape(pattern)}", inside)
            if told.text is None or kept is None:
                self._find(Effect.LOOSER, path, "patternProperties", told.looser or "a forbidden key is not enforced")
                rest = {} if rest is None and told.text is None else rest
            else:
                patterns[told.text] = kept
        open_rest = None if rest is None or rest is False else self.part(rest, f"{path}/additionalProperties", inside)
        if names is not None:
            named = self._named(names, path, place) if open_rest is not None and not patterns else None
            if named is not None and open_rest is not None:
                patterns, open_rest = {named: open_rest}, None
            elif open_rest is not None:
                self._find(Effect.LOOSER, path, "propertyNames", "not enforced here")
        if patterns and open_rest is not None:
            self._find(Effect.LOOSER, path, "patternProperties", "a key that matches may take any allowed value")
        if patterns:
            schema["patternProperties"] = patterns
        if open_rest is not None:
            schema["additionalProperties"] = open_rest if bare(open_rest) else True
            if place is Place.ARGUMENTS:
                self._find(Effect.NARROWER, path, "additionalProperties", "undeclared keys are identifiers only")
        elif rest is False and not patterns:
            schema["additionalProperties"] = False

    def _named(self, names: object, path: str, place: Place) -> str | None:
        """One pattern for the property names, when that is all their schema says."""
        if not isinstance(names, dict) or "pattern" not in names or set(names) - {"type", "pattern", *ANNOTATIONS}:
            return None
        return to_grammar(names["pattern"], raw=place is Place.ARGUMENTS).text

    def _counts(self, schema: dict[str, Any], path: str) -> dict[str, Any] | None:
        fewest, most = schema.get("minProperties", 0), schema.get("maxProperties")
        self._cap(schema, "minProperties", path)
        closed = "additionalProperties" not in schema or schema["additionalProperties"] is False
        if closed and not schema.get("patternProperties") and fewest > len(schema.get("properties", {})):
            return None
        return None if most is not None and most < max(fewest, len(schema.get("required", ()))) else schema

    # ── reports ──────────────────────────────────────────────────────────────────────────────────────────────

    def _cap(self, schema: dict[str, Any], keyword: str, path: str) -> None:
        if schema.get(keyword, 0) > MOST_COUNT:
            del schema[keyword]
            self._find(Effect.LOOSER, path, keyword, f"not enforced beyond {MOST_COUNT}")

    def _find(self, effect: Effect, path: str, keyword: str, reason: str) -> None:
        finding = Finding(effect, path, keyword, reason)
        if finding not in self.findings:
            self.findings.append(finding)


def _all_steps(schema: dict[str, Any]) -> list[int | float] | None:
    """Every number between two bounds that is a multiple of the step, where they are few: xgrammar has no such rule."""
    if {"multipleOf", "minimum", "maximum"} - set(schema) or schema["multipleOf"] <= 0:
        return None
    step, low, high = (Decimal(str(schema[keyword])) for keyword in ("multipleOf", "minimum", "maximum"))
    first, last = (low / step).to_integral_value(ROUND_CEILING), (high / step).to_integral_value(ROUND_FLOOR)
    if last - first > MOST_STEPS:
        return None
    values = [step * count for count in range(int(first), int(last) + 1)]
    inside = [
        value
        for value in values
        if value > schema.get("exclusiveMinimum", low - 1) and value < schema.get("exclusiveMaximum", high + 1)
    ]
    return [int(value) if value == int(value) else float(value) for value in inside]


def _exactly(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        properties = {name: _exactly(part) for name, part in value.items()}
        return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
    if isinstance(value, list):
        if not value:
            return {"type": "array", "items": {}, "maxItems": 0}
        return {
            "type": "array",
            "prefixItems": [_exactly(part) for part in value],
            "items": False,
            "minItems": len(value),
        }
    return {"enum": [value]}


def _whole_bounds(schema: dict[str, Any]) -> None:
    """Bounds of an integer as whole numbers: xgrammar refuses any other."""
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        bound = schema.get(keyword)
        if bound is None or abs(bound) > MOST_INTEGER:
            continue
        exclusive = keyword.startswith("exclusive")
        if bound != int(bound):
            del schema[keyword]
            low = keyword.lower().endswith("minimum")
            inclusive = "minimum" if low else "maximum"
            rounded = ceil(bound) if low else floor(bound)
            other = schema.get(inclusive)
            schema[inclusive] = rounded if other is None else (max if low else min)(rounded, other)
        else:
            schema[keyword] = int(bound)
        assert not exclusive or keyword in schema or bound != int(bound)
