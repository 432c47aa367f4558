"""Which JSON types a schema admits, and what a tool's schema says of one argument.

The GLM wire writes a string bare and everything else as JSON, without saying which it is: only the schema knows.
"""

from typing import Any

from prime_inference.toolcalls.bounded_search import TooSlow
from prime_inference.toolcalls.regexes import UnreadablePattern, to_python
from prime_inference.toolcalls.strict_json import NotJson, parse
from prime_inference.toolcalls.subschemas import Schema, resolve

Kinds = frozenset[str]
EVERY_KIND: Kinds = frozenset(("array", "boolean", "null", "number", "object", "string"))
"""`integer` is not among them: to the wire it is a number."""
STRING: Kinds = frozenset(("string",))
DEEPEST = 32
"""References followed for one answer. A chain longer than this is a cycle; it then admits everything."""


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def kinds(schema: Schema, root: Schema, depth: int = 0) -> Kinds:
    """The JSON types that some value fitting the schema could have, by its types, enums and references."""
    if isinstance(schema, bool) or depth > DEEPEST:
        return EVERY_KIND if schema else frozenset()
    result = EVERY_KIND
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        result &= frozenset("number" if name == "integer" else name for name in types)
    if "const" in schema:
        result &= {kind_of(schema["const"])}
    if "enum" in schema:
        result &= {kind_of(value) for value in schema["enum"]}
    if "$ref" in schema:
        found = resolve(root, schema["$ref"])
        result &= kinds(found[0], root, depth + 1) if found else EVERY_KIND
    for branch in schema.get("allOf", ()):
        result &= kinds(branch, root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            result &= frozenset().union(*(kinds(branch, root, depth + 1) for branch in schema[keyword]))
    return result


def argument_schemas(schema: Schema, root: Schema, key: str, depth: int = 0) -> list[Schema]:
    """All that a tool's schema says of the argument `key`; empty when it says nothing."""
    if isinstance(schema, bool) or depth > DEEPEST:
        return []
    found: list[Schema] = []
    if key in schema.get("properties", {}):
        found.append(schema["properties"][key])
    else:
        found += [part for pattern, part in schema.get("patternProperties", {}).items() if _matches(pattern, key)]
        if not found and isinstance(schema.get("additionalProperties"), dict):
            found.append(schema["additionalProperties"])
    if "$ref" in schema:
        target = resolve(root, schema["$ref"])
        found += argument_schemas(target[0], root, key, depth + 1) if target else []
    for keyword in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(keyword, ()):
            found += argument_schemas(branch, root, key, depth + 1)
    return found


def _matches(pattern: str, key: str) -> bool:
    try:
        return to_python(pattern).search(key)
    except (UnreadablePattern, TooSlow):
        return False


def is_json(text: str) -> bool:
    try:
        parse(text)
    except NotJson:
        return False
    return True
