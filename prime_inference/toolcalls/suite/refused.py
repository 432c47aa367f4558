"""Tools that mean nothing, or that nothing fits: each must be refused with its name and the place of the fault.

What a grammar would make of them is an error in the engine, or, for a reference to elsewhere, silence.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from prime_inference.toolcalls.subschemas import Schema, escape
from prime_inference.toolcalls.suite.generate import KEYS, PARTS

MOST_OTHERS = 3
"""Sound properties beside the faulty one."""


@dataclass(frozen=True)
class Refused:
    construct: str
    entry: dict[str, Any]
    """Of the request's `tools`."""
    path: str | None
    """A JSON pointer into the parameters; None when it is the entry itself that is no function tool."""

    @property
    def parameters(self) -> Schema:
        parameters: Schema = self.entry["function"]["parameters"] if self.path is not None else True
        return parameters


@dataclass(frozen=True)
class Fault:
    schema: Any
    place: str = ""
    """Below the schema."""
    in_list: bool = True
    """Whether it stays a fault as the entries of a list: an empty list has none."""


def external_reference(random: Random) -> Fault:
    target = random.choice(("https://example.com/schema.json", "other.json#/$defs/A", "schema:thing"))
    return Fault({"$ref": target}, "/$ref")


def dangling_reference(random: Random) -> Fault:
    return Fault({"$ref": random.choice(("#/$defs/Nobody", "#/definitions/x/y", "#nowhere"))}, "/$ref")


def endless_reference(random: Random) -> Fault:
    """Leads to `LOOP`, which every tool of this group has, and which leads to itself."""
    return Fault({"$ref": "#/$defs/Loop"}, "/$ref", in_list=False)


def empty_enumeration(random: Random) -> Fault:
    return Fault(random.choice(({"enum": []}, {"type": "string", "enum": []})), "/enum")


def crossed_bounds(random: Random) -> Fault:
    schema = random.choice(
        (
            {"type": "integer", "minimum": 5, "maximum": 1},
            {"type": "number", "exclusiveMinimum": 2, "maximum": 2},
            {"type": "string", "minLength": 4, "maxLength": 3},
            {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 2},
            {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2, "maxProperties": 1},
        )
    )
    return Fault(schema, in_list=False)


def properties_as_list(random: Random) -> Fault:
    return Fault({"type": "object", "properties": random.choice(([], ["a"], [{"name": "a"}]))}, "/properties")


def unknown_type(random: Random) -> Fault:
    return Fault({"type": random.choice(("widget", "", 5, ["string", "file"]))}, "/type")


def no_schema(random: Random) -> Fault:
    return Fault(random.choice(("string", 5, 1.5)))


FAULTS: dict[str, Callable[[Random], Fault]] = {
    maker.__name__: maker
    for maker in (
        *(external_reference, dangling_reference, endless_reference, empty_enumeration, crossed_bounds),
        *(properties_as_list, unknown_type, no_schema),
    )
}
"""By name."""
LOOP = {"Loop": {"$ref": "#/$defs/Loop"}}
NO_TOOLS = ("nameless", "responses_shape")
"""Entries that xgrammar takes for a builtin tool, and then ignores."""
REFUSED = (*FAULTS, *NO_TOOLS)


def refused(count: int, seed: int, name: str) -> Iterator[Refused]:
    """Each construct in turn, in tools called `name`; the same seed gives the same tools."""
    for number in range(count):
        random = Random(f"{seed}/refused/{number}")
        construct = REFUSED[number % len(REFUSED)]
        sound = {"type": "object", "properties": {"x": {"type": "integer"}}}
        if construct == "nameless":
            yield Refused(construct, {"type": "function", "function": {"parameters": sound}}, None)
        elif construct == "responses_shape":
            yield Refused(construct, {"type": "function", "name": name, "parameters": sound}, None)
        else:
            parameters, path = _around(FAULTS[construct](random), random)
            entry = {"type": "function", "function": {"name": name, "parameters": parameters}}
            yield Refused(construct, entry, path)


def _around(fault: Fault, random: Random) -> tuple[dict[str, Any], str]:
    """The fault as a required property, there or in the object or list that it is, beside sound ones."""
    key, *others = random.sample(KEYS, random.randint(1, 1 + MOST_OTHERS))
    path, schema = f"/properties/{escape(key)}", fault.schema
    depth = random.choice(("here", "object", "list") if fault.in_list else ("here", "object"))
    if depth == "object":
        schema = {"type": "object", "properties": {"inner": schema}, "required": ["inner"]}
        path += "/properties/inner"
    elif depth == "list":
        schema, path = {"type": "array", "items": schema}, f"{path}/items"
    beside = {other: PARTS["whole_number"](random).schema for other in others}
    properties = dict(random.sample([*beside.items(), (key, schema)], len(others) + 1))
    return {"type": "object", "properties": properties, "required": [key], "$defs": LOOP}, path + fault.place
