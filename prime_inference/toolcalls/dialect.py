"""Other dialects' words said in JSON Schema's own: the schema as its author means it.

Function-calling data and OpenAPI 3.0 write `"type": "dict"`, `nullable: true` or `exclusiveMinimum: true`. Draft 7
has no such words, so a validator either rejects every call or checks less than the author asked for. `explicit`
rewrites them without changing what is meant; what has no meaning at all (properties as a list, an unknown type)
raises `Unreadable`.
"""

from typing import Any

from prime_inference.toolcalls.errors import Unreadable
from prime_inference.toolcalls.shapes import SHAPES, first_misshapen
from prime_inference.toolcalls.subschemas import Schema, map_subschemas

JSON_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
ANY_TYPE = "any"
ALIASES = {
    **{name: name for name in JSON_TYPES},
    **{name.upper(): name for name in JSON_TYPES},
    "any": ANY_TYPE,
    "Any": ANY_TYPE,
    "bool": "boolean",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "long": "integer",
    "None": "null",
    "none": "null",
    "NoneType": "null",
    "str": "string",
    "tuple": "array",
}
"""Type names seen in BFCL, Glaive and Gemini-style tools, each with the JSON type it stands for."""

_MAY_BE_NULL = ("const", "default", "examples")
"""Keywords that null is a value of. For any other it is a serialiser's way of saying "not given"."""
_EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def explicit(schema: object, path: str = "") -> Schema:
    """The schema in JSON Schema's own words. Returns the same object when there was nothing to say differently."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise Unreadable(path, "a schema must be an object or a boolean")
    given = {key: value for key, value in schema.items() if value is not None or key in _MAY_BE_NULL}
    misshapen = first_misshapen(given)
    if misshapen is not None:
        raise Unreadable(f"{path}/{misshapen}", SHAPES[misshapen][1])
    result = map_subschemas(given, path, explicit)
    if "type" in result:
        _rename_types(result, path)
    for exclusive, inclusive in _EXCLUSIVE.items():
        _boolean_exclusive(result, exclusive, inclusive)
    if isinstance(result.get("required"), bool):
        del result["required"]  # Draft 3 puts it on the property; the object's own list is what counts
    if "nullable" in result:
        result = _nullable(result)
    return schema if result == schema else result


def _rename_types(schema: dict[str, Any], path: str) -> None:
    stated = schema["type"]
    names = stated if isinstance(stated, list) else [stated]
    types: list[str] = []
    for name in names:
        if not isinstance(name, str) or name not in ALIASES:
            raise Unreadable(f"{path}/type", f"{name!r} is not a JSON type")
        if ALIASES[name] not in types:
            types.append(ALIASES[name])
    if ANY_TYPE in types or not types:
        del schema["type"]
    else:
        schema["type"] = types if isinstance(stated, list) else types[0]


def _boolean_exclusive(schema: dict[str, Any], exclusive: str, inclusive: str) -> None:
    """Draft 4's form: a boolean that says how to read the bound beside it."""
    if not isinstance(schema.get(exclusive), bool):
        return
    if schema.pop(exclusive) and inclusive in schema:
        schema[exclusive] = schema.pop(inclusive)


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI 3.0's `nullable: true`: null is allowed too."""
    rest = {keyword: value for keyword, value in schema.items() if keyword != "nullable"}
    if schema["nullable"] is not True:
        return rest
    if "const" in rest:
        rest["enum"] = [rest.pop("const")]
    if "enum" in rest and None not in rest["enum"]:
        rest["enum"] = [*rest["enum"], None]
    if "type" in rest:
        types = rest["type"] if isinstance(rest["type"], list) else [rest["type"]]
        rest["type"] = types if "null" in types else [*types, "null"]
        if any(keyword in rest for keyword in ("anyOf", "oneOf", "allOf", "$ref")):
            return {"anyOf": [{**rest, "type": types[0] if len(types) == 1 else types}, {"type": "null"}]}
        return rest
    if any(keyword in rest for keyword in ("anyOf", "oneOf", "allOf", "$ref")):
        return {"anyOf": [rest, {"type": "null"}]}
    return rest
