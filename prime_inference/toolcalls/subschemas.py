"""Where JSON Schema keeps schemas inside schemas, and how a local reference is followed.

A schema is a dict or a boolean. Paths are JSON pointers without the leading `#`.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any] | bool

ONE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords whose value is one schema (`items` may also be a list)."""
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
MAPS = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose value maps a name to a schema (`dependencies` may also map to a list of names)."""


def is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def escape(token: str) -> str:
    return token.replace("~", "~0").replace("/", "~1")


def map_subschemas(schema: dict[str, Any], path: str, change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """A copy of `schema` with `change(subschema, its path)` applied one level down; everything else is shared."""
    result = dict(schema)
    for keyword in ONE:
        if is_schema(schema.get(keyword)):
            result[keyword] = change(schema[keyword], f"{path}/{keyword}")
    for keyword in LISTS:
        value = schema.get(keyword)
        if isinstance(value, list):
            result[keyword] = [change(item, f"{path}/{keyword}/{index}") for index, item in enumerate(value)]
    for keyword in MAPS:
        value = schema.get(keyword)
        if isinstance(value, dict):
            result[keyword] = {
                name: item if isinstance(item, list) else change(item, f"{path}/{keyword}/{escape(name)}")
                for name, item in value.items()
            }
    return result


def every_subschema(schema: object, path: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """The schema and all schemas inside it with their pointers, parents first."""
    if not isinstance(schema, dict):
        return
    yield schema, path
    for keyword in ONE:
        yield from every_subschema(schema.get(keyword), f"{path}/{keyword}")
    for keyword in LISTS:
        if isinstance(schema.get(keyword), list):
            for index, item in enumerate(schema[keyword]):
                yield from every_subschema(item, f"{path}/{keyword}/{index}")
    for keyword in MAPS:
        if isinstance(schema.get(keyword), dict):
            for name, item in schema[keyword].items():
                yield from every_subschema(item, f"{path}/{keyword}/{escape(name)}")


def resolve(root: Schema, reference: str) -> tuple[Schema, str] | None:
    """The schema that a reference into the same document names, and its pointer; None for any other reference."""
    if reference == "#":
        return root, ""
    if reference.startswith("#/"):
        return _walk(root, unquote(reference[2:]).split("/"), reference[1:])
    return _named(root, reference)


def _walk(root: Schema, tokens: list[str], pointer: str) -> tuple[Schema, str] | None:
    here: Any = root
    for token in tokens:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and name in here:
            here = here[name]
        elif isinstance(here, list) and name.isdecimal() and int(name) < len(here):
            here = here[int(name)]
        else:
            return None
    return (here, pointer) if is_schema(here) else None


def _named(root: Schema, reference: str) -> tuple[Schema, str] | None:
    """`#name` by `$anchor` (or Draft 7's `$id: "#name"`), and a whole `$id` that the document itself carries."""
    for schema, pointer in every_subschema(root):
        anchor = schema.get("$anchor")
        if schema.get("$id") == reference or (isinstance(anchor, str) and reference == f"#{anchor}"):
            return schema, pointer
    return None
