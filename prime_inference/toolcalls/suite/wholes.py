"""Constructs that are a tool's whole parameters, with arguments that fit and others: what a single value cannot show."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from prime_inference.toolcalls.subschemas import Schema
from prime_inference.toolcalls.suite.parts import TEXTS

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Whole:
    parameters: Schema
    right: tuple[Arguments, ...]
    wrong: tuple[Arguments, ...] = ()
    reordered: tuple[Arguments, ...] = ()
    extended: tuple[Arguments, ...] = ()
    """Right, with keys that the schema does not speak of. A grammar may keep them out."""


def root_reference(random: Random) -> Whole:
    """`$ref: "#"`: the arguments again, inside an argument, where they are JSON and no longer pairs."""
    root = {"$ref": "#"}
    child = random.choice((root, {"anyOf": [root, {"type": "null"}]}, {"type": "array", "items": root}))
    listed = child.get("type") == "array"
    parameters = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, "child": child},
        "required": ["name"],
    }

    def around(inner: Any) -> Arguments:
        return {"name": random.choice(TEXTS), "child": [inner] if listed else inner}

    leaf: Arguments = {"name": random.choice(TEXTS), "size": 3}
    right = (leaf, around(leaf), around(around({"name": "deep"})))
    wrong = (around({}), around({"name": 1}), around({"name": "x", "size": "3"}), around(around({"size": 1})))
    return Whole(parameters, right, wrong, ({"size": 3, "name": "x"},), ({**leaf, "undeclared_key": 1},))


def no_parameters(random: Random) -> Whole:
    """Nothing is said, in every way that is seen: such a function is called without arguments."""
    closed: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
    parameters: Schema = random.choice(
        ({}, {}, True, {"type": "object", "properties": {}}, {"description": "x"}, closed)
    )
    other = ({"undeclared_key": 1}, {"x": "y"})
    return Whole(parameters, ({},), other) if parameters is closed else Whole(parameters, ({},), extended=other)


def open_parameters(random: Random) -> Whole:
    """Any keys. xgrammar can write those that are identifiers; the others stand under `extended`."""
    parameters, value = random.choice(
        (
            ({"type": "object"}, random.choice(TEXTS)),
            ({"type": "object", "additionalProperties": True}, [1, {"k": None}]),
            ({"type": "object", "additionalProperties": {"type": "integer"}}, random.randint(0, 99)),
        )
    )
    right: tuple[Arguments, ...] = ({}, {"query": value}, {"a": value, "B_2": value})
    wrong = ({"query": 1.5}, {"query": None}) if "additionalProperties" in parameters and isinstance(value, int) else ()
    return Whole(parameters, right, wrong, extended=tuple({key: value} for key in ("max-results", "имя", "two words")))


def root_any_of(random: Random) -> Whole:
    """Alternatives of whole arguments: as requirements beside the properties, or as objects of their own."""
    number, text = {"type": "integer"}, {"type": "string", "minLength": 1}
    both = {"id": number, "name": text}
    beside = {"type": "object", "properties": both, "anyOf": [{"required": ["id"]}, {"required": ["name"]}]}
    apart = {
        "anyOf": [
            {"type": "object", "properties": {key: part}, "required": [key], "additionalProperties": False}
            for key, part in both.items()
        ]
    }
    right: tuple[Arguments, ...] = ({"id": random.randint(1, 9)}, {"name": "x"})
    wrong: tuple[Arguments, ...] = ({}, {"id": 1.5}, {"name": ""})
    together, turned = {"id": 1, "name": "x"}, {"name": "x", "id": 1}
    if random.random() < 0.5:
        return Whole(beside, (*right, together), wrong, (turned,), ({"id": 1, "undeclared_key": 1},))
    return Whole(apart, right, (*wrong, together))


WHOLES: dict[str, Callable[[Random], Whole]] = {
    maker.__name__: maker for maker in (root_reference, no_parameters, open_parameters, root_any_of)
}
"""By name."""
