"""Other dialects' words said in JSON Schema's own: the schema as its author means it.

Function-calling data and OpenAPI 3.0 write `"type": "dict"`, `nullable: true` or `exclusiveMinimum: true`. Draft 7
has no such words, so a validator either rejects every call or checks less than the author asked for. `explicit`
rewrites them without changing what is meant; what has no meaning at all (properties as a list, an unknown type)
raises `Unreadable`.
"""

from typing import Any

from prime_inference.toolcalls.errors import Unreadable
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

_EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def explicit(schema: object, path: str = "") -> Schema:
    """The schema in JSON Schema's own words. Returns the same object when there was nothing to say differently."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise Unreadable(path, "a schema must be an object or a boolean")
    _check_shapes(schema, path)
    result = map_subschemas(schema, path, explicit)
    if "type" in result:
        _rename_types(result, path)
    for exclusive, inclusive in _EXCLUSIVE.items():
        _boolean_exclusive(result, exclusive, inclusive)
    if isinstance(result.get("required"), bool):
        del result["required"]  # Draft 3 puts it on the property; the object's own list is what counts
    if "nullable" in result:
        result = _nullable(result)
    return schema if result == schema else result


def _check_shapes(schema: dict[str, Any], path: str) -> None:
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        if keyword in schema and not isinstance(schema[keyword], dict):
            raise Unreadable(f"{path}/{keyword}", "must map names to schemas")
    for keyword in ("allOf", "anyOf", "oneOf", "prefixItems", "enum"):
        if keyword in schema and not (isinstance(schema[keyword], list) and schema[keyword]):
            raise Unreadable(f"{path}/{keyword}", "must be a list with at least one entry")
    required = schema.get("required", [])
    if not isinstance(required, bool) and not (
        isinstance(required, list) and all(isinstance(name, str) for name in required)
    ):
        raise Unreadable(f"{path}/required", "must be a list of property names")
    if "$ref" in schema and not isinstance(schema["$ref"], str):
        raise Unreadable(f"{path}/$ref", "must be a string")
    for keyword in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
        bound = schema.get(keyword, 0)
        if isinstance(bound, bool) or not isinstance(bound, int | float) or bound < 0 or bound != int(bound):
            raise Unreadable(f"{path}/{keyword}", "must be a whole number, not negative")
    for keyword in ("minimum", "maximum", "multipleOf"):
        if isinstance(schema.get(keyword, 0), bool) or not isinstance(schema.get(keyword, 0), int | float):
            raise Unreadable(f"{path}/{keyword}", "must be a number")
    for keyword in ("pattern", "format"):
        if not isinstance(schema.get(keyword, ""), str):
            raise Unreadable(f"{path}/{keyword}", "must be a string")


def _rename_types(schema: dict[str, Any], path: str) -> None:
    stated = schema["type"]
    if stated is None:
        del schema["type"]  # a serialiser's null for "not given"
        return
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
