"""JSON Schema Draft 7 as OpenRouter's counter applies it.

Its validator (`@cfworker/json-schema`, draft "7") differs from the letter of Draft 7 in three ways that matter
here: it asserts `format`; it also applies the later keywords `prefixItems`, `dependentRequired`, `dependentSchemas`
and `unevaluatedProperties`; and it reads patterns as ECMA-262. Beside a `$ref` every other keyword is ignored, as
Draft 7 says. A schema that cannot be compiled counts every call as valid, so `validator` gives None for one.
"""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from jsonschema import Draft7Validator, Draft202012Validator  # type: ignore[import-untyped, unused-ignore]
from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped, unused-ignore]
from jsonschema.validators import extend  # type: ignore[import-untyped, unused-ignore]

from prime_inference.toolcalls.bounded_search import TooSlow
from prime_inference.toolcalls.formats import FORMATS
from prime_inference.toolcalls.regexes import UnreadablePattern, to_python
from prime_inference.toolcalls.shapes import first_misshapen
from prime_inference.toolcalls.subschemas import (
    LISTS,
    MAPS,
    Schema,
    every_subschema,
    is_schema,
    map_subschemas,
    resolve,
)

MOST_MISMATCHES = 3
"""Reported for one call: enough to see what is wrong, bounded since a wide anyOf reports every branch."""

Errors = Iterator[ValidationError]
Validator = Any
"""jsonschema ships no types; its validator objects stay behind the functions of this module."""


def _pattern(_: Validator, pattern: str, instance: Any, __: Any) -> Errors:
    if isinstance(instance, str) and not to_python(pattern).search(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Validator, patterns: dict[str, Any], instance: Any, _: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        expression = to_python(pattern)
        for name, value in instance.items():
            if expression.search(name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Validator, allowed: Schema, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    patterns = [to_python(pattern) for pattern in schema.get("patternProperties", {})]
    for name, value in instance.items():
        if name in schema.get("properties", {}) or any(pattern.search(name) for pattern in patterns):
            continue
        if allowed is False:
            yield ValidationError(f"property {name!r} is not declared")
        else:
            yield from validator.descend(value, allowed, path=name)


def _items(validator: Validator, items: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, list):
        return
    if isinstance(items, list):
        pairs = enumerate(zip(instance, items, strict=False))
        for index, (value, subschema) in pairs:
            yield from validator.descend(value, subschema, path=index, schema_path=index)
        return
    start = len(schema.get("prefixItems", ()))
    for index, value in enumerate(instance[start:], start):
        yield from validator.descend(value, items, path=index)


def _multiple_of(validator: Validator, step: Any, instance: Any, schema: Any) -> Errors:
    try:
        yield from Draft7Validator.VALIDATORS["multipleOf"](validator, step, instance, schema)
    except OverflowError:  # `1e400`, or an integer of hundreds of digits by a fraction
        yield ValidationError(f"{str(instance)[:20]} is too large to be a multiple of {step}")


def _unique_items(_: Validator, unique: Any, instance: Any, __: Any) -> Errors:
    """In one pass; jsonschema compares every object with every other."""
    if unique and isinstance(instance, list) and len({_hashed(value) for value in instance}) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _hashed(value: Any) -> Hashable:
    """Equal for values that are equal in JSON: 1 and 1.0, objects whatever their order; not 1 and true."""
    match value:
        case bool():
            return bool, value
        case dict():
            return dict, frozenset((key, _hashed(each)) for key, each in value.items())
        case list():
            return list, tuple(map(_hashed, value))
    return value  # type: ignore[no-any-return]  # a string, a number, or None


class _Judging(threading.local):
    """What is known of the value that this thread judges: the errors of each part of it under each reference."""

    references: dict[tuple[str, int], list[ValidationError]] | None = None


_judging = _Judging()


@contextmanager
def _one_judging() -> Iterator[None]:
    _judging.references = {}
    try:
        yield
    finally:
        _judging.references = None


def _reference(validator: Validator, reference: str, instance: Any, _: Any) -> Errors:
    """Each part of a value once under each reference. In a recursive union every alternative asks again for all that is
    below, twice as much with each level."""
    known = _judging.references
    errors = validator._validate_reference(ref=reference, instance=instance)
    if known is None:
        yield from errors
        return
    # References are those of one document, and the value lives as long as its judging does.
    key = reference, id(instance)
    if key not in known:
        known[key] = list(errors)
    # Copies, since whoever passes an error on writes its own place into it.
    yield from map(ValidationError.create_from, known[key])


def _format(_: Validator, name: str, instance: Any, __: Any) -> Errors:
    check = FORMATS.get(name)
    if check is not None and isinstance(instance, str) and not check(instance):
        yield ValidationError(f"{instance!r} is not a {name}")


_LATER = ("prefixItems", "dependentRequired", "dependentSchemas", "unevaluatedProperties")
CountedValidator = extend(
    Draft7Validator,
    {
        **{keyword: Draft202012Validator.VALIDATORS[keyword] for keyword in _LATER},
        "additionalProperties": _additional_properties,
        "format": _format,
        "items": _items,
        "multipleOf": _multiple_of,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
        "$ref": _reference,
    },
)
_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


def validator(schema: object) -> Validator | None:
    """A validator for the schema, or None when the schema cannot be compiled (a reference that leads nowhere, ...)."""
    if not isinstance(schema, dict | bool):
        return None
    parts = [part for part, _ in every_subschema(schema)]
    if not all(_compiles(part, schema) for part in parts):
        return None
    plain = all("$id" not in part and part.get("$ref", "#")[:2] in ("#", "#/") for part in parts)
    return CountedValidator(schema if plain else _pointers(schema, schema))


def _pointers(schema: Any, root: Schema) -> Any:
    """A copy whose references are all JSON pointers into it: jsonschema knows Draft 7's `$id`, not `$anchor`."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("$id", "$anchor")}
    found = resolve(root, kept["$ref"]) if "$ref" in kept else None
    if found is not None:
        kept["$ref"] = "#" + quote(found[1])
    return map_subschemas(kept, "", lambda part, _: _pointers(part, root))


def _compiles(part: dict[str, Any], root: Schema) -> bool:
    reference = part.get("$ref")
    if reference is not None and (not isinstance(reference, str) or resolve(root, reference) is None):
        return False
    types = part.get("type", [])
    if not all(isinstance(name, str) and name in _TYPES for name in (types if isinstance(types, list) else [types])):
        return False
    if first_misshapen(part) is not None or isinstance(part.get("required"), bool):
        return False
    inside = [
        one for keyword in MAPS if keyword in part and keyword != "dependencies" for one in part[keyword].values()
    ]
    inside += [one for keyword in LISTS if isinstance(part.get(keyword), list) for one in part[keyword]]
    if not all(is_schema(one) for one in inside):
        return False
    patterns = [part["pattern"]] if "pattern" in part else []
    return all(_readable(pattern) for pattern in [*patterns, *part.get("patternProperties", ())])


def _readable(pattern: object) -> bool:
    try:
        return isinstance(pattern, str) and to_python(pattern) is not None
    except UnreadablePattern:
        return False


def is_valid(checker: Validator, schema: Schema, value: Any) -> bool:
    """Whether `value` fits `schema`, a part of the document that `checker` was made for."""
    try:
        with _one_judging():
            return bool(checker.evolve(schema=schema).is_valid(value))
    except RecursionError:  # a schema that refers to itself without end
        return True
    except TooSlow:
        return False


def mismatches(checker: Validator, value: Any) -> list[str]:
    """What is wrong, each as `/path: reason`; empty when the value is valid, or the schema has no end to check. A pattern that
    cannot be checked in time is a mismatch: nobody has seen that the value fits."""
    found: list[str] = []
    try:
        with _one_judging():
            for error in checker.iter_errors(value):
                found.append("/" + "/".join(str(part) for part in error.absolute_path) + ": " + error.message)
                if len(found) == MOST_MISMATCHES:
                    break
    except RecursionError:
        return []
    except TooSlow as slow:
        found.append(f"/: {slow}")
    return found
