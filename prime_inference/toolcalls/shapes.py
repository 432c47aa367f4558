"""What the value of each schema keyword must look like for the keyword to mean anything."""

from collections.abc import Callable
from typing import Any

from prime_inference.toolcalls.subschemas import ONE, is_schema

Shape = tuple[Callable[[Any], bool], str]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _maps_to_names(value: Any) -> bool:
    return isinstance(value, dict) and all(_are_names(names) for names in value.values())


def _maps_to_names_or_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(is_schema(one) or _are_names(one) for one in value.values())


_MAP: Shape = (lambda value: isinstance(value, dict), "must map names to schemas")
_LIST: Shape = (lambda value: isinstance(value, list) and bool(value), "must be a list with at least one entry")
_COUNT: Shape = (_is_count, "must be a whole number, not negative")
_NUMBER: Shape = (_is_number, "must be a number")
_TEXT: Shape = (lambda value: isinstance(value, str), "must be a string")
_SCHEMA: Shape = (is_schema, "must be a schema")
SHAPES: dict[str, Shape] = {
    **dict.fromkeys(ONE, _SCHEMA),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), _MAP),
    "dependencies": (_maps_to_names_or_schemas, "must map names to schemas or lists of names"),
    "dependentSchemas": _MAP,
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems", "enum"), _LIST),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"), (lambda value: isinstance(value, int | float), "must be a number")
    ),
    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
    "dependentRequired": (_maps_to_names, "must map names to lists of names"),
    "items": (lambda value: is_schema(value) or isinstance(value, list), "must be a schema or a list of schemas"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "must be a positive number"),
    "required": (lambda value: _are_names(value) or isinstance(value, bool), "must be a list of property names"),
}


def first_misshapen(schema: dict[str, Any]) -> str | None:
    """The first keyword whose value says nothing."""
    for keyword, value in schema.items():
        shape = SHAPES.get(keyword)
        if shape is not None and not shape[0](value):
            return keyword
    return None
