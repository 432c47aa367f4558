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


_HOLDS_ONE, _HOLDS_LIST, _HOLDS_MAP = frozenset(ONE), frozenset(LISTS), frozenset(MAPS)


def map_subschemas(schema: dict[str, Any], path: str, change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """A copy of `schema` with `change(subschema, its path)` applied one level down; everything else is shared."""
    result = dict(schema)
    for keyword, value in schema.items():
        if isinstance(value, dict):
            if keyword in _HOLDS_MAP:
                result[keyword] = {
                    name: item
                    if keyword == "dependencies" and isinstance(item, list)
                    else change(item, f"{path}/{keyword}/{escape(name)}")
                    for name, item in value.items()
                }
            elif keyword in _HOLDS_ONE:
                result[keyword] = change(value, f"{path}/{keyword}")
        elif isinstance(value, list) and keyword in _HOLDS_LIST:
            result[keyword] = [change(item, f"{path}/{keyword}/{index}") for index, item in enumerate(value)]
        elif isinstance(value, bool) and keyword in _HOLDS_ONE:
            result[keyword] = change(value, f"{path}/{keyword}")
    return result


def every_subschema(schema: object, path: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """The schema and all schemas inside it with their pointers, parents first."""
    if not isinstance(schema, dict):
        return
    yield schema, path
    for keyword, value in schema.items():
        if isinstance(value, dict):
            if keyword in _HOLDS_MAP:
                for name, item in value.items():
                    yield from every_subschema(item, f"{path}/{keyword}/{escape(name)}")
            elif keyword in _HOLDS_ONE:
                yield from every_subschema(value, f"{path}/{keyword}")
        elif isinstance(value, list) and keyword in _HOLDS_LIST:
            for index, item in enumerate(value):
                yield from every_subschema(item, f"{path}/{keyword}/{index}")


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
