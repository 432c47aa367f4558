"""More constructs of one value, beside those of `parts`: what an everyday tool does not have, and xgrammar gets wrong or
cannot compile. Kept apart because a model can hardly be asked for a text of 5,000 characters, as the live cases would.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from prime_inference.toolcalls.suite.parts import Part


def huge_length(random: Random) -> Part:
    """Longer than any call: xgrammar refuses the larger of them, and takes seconds for a text under the smaller."""
    return Part({"type": "string", "minLength": random.choice((1_000_000, 2**31, 2**40))}, (), ("short",))


def deep_pattern(random: Random) -> Part:
    """A large count in a pattern under two lists: passes vLLM's check of a request and fails in its engine
    (`per_rule_fsm_hashes`)."""
    most = random.choice((200, 255))
    one, inside = random.choice((("[0-9a-zA-Z_-]", "a"), ("(?:[0-9]{2}-)", "07-")))
    text = {"type": "string", "pattern": f"^{one}{{1,{most}}}$"}
    schema = {"type": "array", "items": {"type": "array", "items": text}}
    fitting: tuple[Any, ...] = ([[inside]], [[], [inside * 3, inside * most]], [])
    return Part(schema, fitting, ([["a b"]], [[inside * (most + 1)]], [[""]], ["x"], {}))


def prefixed_list(random: Random) -> Part:
    """A tuple in the words of Draft 2020-12, as Pydantic writes it."""
    pair = [{"type": "integer"}, {"type": "string"}]
    closed = {"type": "array", "prefixItems": pair, "minItems": 2, "maxItems": 2}
    return Part(closed, ([1, "x"], [random.randint(2, 9), ""]), (["x", 1], [1], [1, "x", 2], {}))


def old_definition(random: Random) -> Part:
    """A reference to `definitions`, Draft 7's place for them, whose name needs escapes in a pointer."""
    name = random.choice(("Range", "a/b", "x~y"))
    target = {"type": "object", "properties": {"low": {"type": "integer"}}, "required": ["low"]}
    schema = {"$ref": f"#/definitions/{name.replace('~', '~0').replace('/', '~1')}"}
    return Part(schema, ({"low": 1}, {"low": -7}), ({}, {"low": "1"}, {"low": None}), ((name, target),), "definitions")


def impossible_option(random: Random) -> Part:
    """Bounds that cross on a key that need not be there: the tool works, and its key is never right."""
    return random.choice(
        (
            Part({"type": "integer", "minimum": 9, "maximum": 1}, (), (9, 1, 5)),
            Part({"type": "string", "minLength": 3, "maxLength": 1}, (), ("a", "abc")),
            Part({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 1}, (), ([], [1], [1, 2])),
        )
    )


def null_type(random: Random) -> Part:
    return Part({"type": random.choice(("null", "None"))}, (None,), (0, False, []))


EDGES: dict[str, Callable[[Random], Part]] = {
    maker.__name__: maker
    for maker in (huge_length, deep_pattern, prefixed_list, old_definition, impossible_option, null_type)
}
"""By name."""
