"""Whole tools with arguments that are right and wrong, drawn from `parts`: the same seed gives the same set.

The constructs lead one tool each in turn, which is their minimum share (`LEAST_SHARE`); a tool has one to six
properties, declared in random order, some required, or is made whole (`wholes`). Arguments are made in declared order.
Beside them stand, apart, the same arguments in another order and with a key that the schema neither declares nor
forbids: a grammar may keep those out, a judge must let them in.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from prime_inference.toolcalls.suite.edges import EDGES
from prime_inference.toolcalls.suite.parts import MAKERS, Part
from prime_inference.toolcalls.suite.wholes import WHOLES

KEYS = ("query", "file_path", "userId", "max-results", "имя", "two words", "$top", "x.y", "limit", "データ")
"""Property names: plain ones, and others that grammars of identifiers cannot spell."""
MOST_PROPERTIES = 6
COMMON = {
    **{"free_string": 6, "whole_number": 3, "boolean": 3, "choice": 3, "optional_type": 3, "referred_object": 3},
    **{"nested": 2, "listed": 2, "formatted": 2, "fractional_number": 2, "bounded_string": 2, "constant": 2},
}
"""How much oftener than the rest a construct stands beside the leading one: what Pydantic and zod emit all the time."""
PARTS = {**MAKERS, **EDGES}
EVERYDAY = tuple(MAKERS)
EVERY = (*MAKERS, *EDGES, *WHOLES, *WHOLES)
"""All constructs. Whole tools, which never stand beside another construct, have two turns."""
LEAST_SHARE = 1 / len(EVERY)
"""Of the tools of a set of `EVERY`, led by each construct; most are in more, beside others."""


@dataclass(frozen=True)
class Sample:
    number: int
    constructs: tuple[str, ...]
    parameters: Any
    """A schema: an object, or for a function without parameters perhaps True."""
    right: tuple[dict[str, Any], ...]
    wrong: tuple[tuple[str, dict[str, Any]], ...]
    """Each with the construct that makes it wrong."""
    reordered: tuple[dict[str, Any], ...]
    """Right, with keys in another order than declared."""
    extended: tuple[dict[str, Any], ...]
    """Right, with one key more than the schema speaks of."""


def generate(count: int, seed: int, constructs: Sequence[str] = EVERYDAY) -> Iterator[Sample]:
    beside = [name for name in constructs if name in PARTS]
    weights = [COMMON.get(name, 1) for name in beside]
    for number in range(count):
        random = Random(f"{seed}/{number}")
        others = random.choices(beside, weights, k=random.randint(0, MOST_PROPERTIES - 1))
        leading = constructs[number % len(constructs)]
        if leading in WHOLES:
            whole = WHOLES[leading](random)
            wrong = tuple((leading, arguments) for arguments in whole.wrong)
            yield Sample(number, (leading,), whole.parameters, whole.right, wrong, whole.reordered, whole.extended)
        else:
            yield _sample(number, [leading, *others], random)


def _sample(number: int, constructs: list[str], random: Random) -> Sample:
    keys = random.sample(KEYS, len(constructs))
    parts = [PARTS[name](random) for name in constructs]
    order = list(zip(keys, parts, strict=True))
    made_by = dict(zip(keys, constructs, strict=True))
    random.shuffle(order)
    required = [key for key, part in order if random.random() < 0.6 and part.fitting]
    random.shuffle(required)
    parameters: dict[str, Any] = {"type": "object", "properties": {key: part.schema for key, part in order}}
    if required:
        parameters["required"] = required
    for part in parts:
        for name, schema in part.definitions:
            parameters.setdefault(part.home, {})[name] = schema
    closed = random.random() < 0.3
    if closed:
        parameters["additionalProperties"] = False
    right = [_fitting(order, required, random) for _ in range(3)]
    reordered = [dict(reversed(list(one.items()))) for one in right if len(one) > 1]
    extended = [] if closed else [{**right[0], "undeclared_key": 1}]
    return Sample(
        number,
        tuple(constructs),
        parameters,
        tuple(right),
        tuple(_unfitting(order, required, right[0], made_by)),
        tuple(reordered),
        tuple(extended),
    )


def _fitting(order: list[tuple[str, Part]], required: list[str], random: Random) -> dict[str, Any]:
    chosen = [(key, part.fitting) for key, part in order if key in required or random.random() < 0.7]
    return {key: random.choice(fitting) for key, fitting in chosen if fitting}


def _unfitting(
    order: list[tuple[str, Part]], required: list[str], right: dict[str, Any], made_by: dict[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Wrong in one place each: every unfitting value of every part, and every required key left out."""
    for key, part in order:
        for value in part.unfitting:
            whole = {**right, key: value}
            yield made_by[key], {name: whole[name] for name, _ in order if name in whole}
    for key in required:
        yield "missing_key", {name: value for name, value in right.items() if name != key}
