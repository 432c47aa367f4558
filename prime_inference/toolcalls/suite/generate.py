"""Whole tools with arguments that are right and wrong, drawn from `parts`: the same seed gives the same set.

Every construct leads one tool in `len(MAKERS)`, which is its minimum share; a tool has one to six properties,
declared in random order, some required. Arguments are made in declared order. Beside them stand, apart, the same
arguments in another order and with a key that the schema neither declares nor forbids: a grammar may keep those
out, a judge must let them in.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from prime_inference.toolcalls.suite.parts import MAKERS, Part

KEYS = ("query", "file_path", "userId", "max-results", "имя", "two words", "$top", "x.y", "limit", "データ")
"""Property names: plain ones, and others that grammars of identifiers cannot spell."""
MOST_PROPERTIES = 6
COMMON = {
    **{"free_string": 6, "whole_number": 3, "boolean": 3, "choice": 3, "optional_type": 3, "referred_object": 3},
    **{"nested": 2, "listed": 2, "formatted": 2, "fractional_number": 2, "bounded_string": 2, "constant": 2},
}
"""How much oftener than the rest a construct stands beside the leading one: what Pydantic and zod emit all the time."""


@dataclass(frozen=True)
class Sample:
    number: int
    constructs: tuple[str, ...]
    parameters: dict[str, Any]
    right: tuple[dict[str, Any], ...]
    wrong: tuple[tuple[str, dict[str, Any]], ...]
    """Each with the construct that makes it wrong."""
    reordered: tuple[dict[str, Any], ...]
    """Right, with keys in another order than declared."""
    extended: tuple[dict[str, Any], ...]
    """Right, with one key more than the schema speaks of."""


def generate(count: int, seed: int) -> Iterator[Sample]:
    names = list(MAKERS)
    for number in range(count):
        random = Random(f"{seed}/{number}")
        others = random.choices(
            names, [COMMON.get(name, 1) for name in names], k=random.randint(0, MOST_PROPERTIES - 1)
        )
        yield _sample(number, [names[number % len(names)], *others], random)


def _sample(number: int, constructs: list[str], random: Random) -> Sample:
    keys = random.sample(KEYS, len(constructs))
    parts = [MAKERS[name](random) for name in constructs]
    order = list(zip(keys, parts, strict=True))
    made_by = dict(zip(keys, constructs, strict=True))
    random.shuffle(order)
    definitions = {name: schema for part in parts for name, schema in part.definitions}
    required = [key for key, _ in order if random.random() < 0.6]
    random.shuffle(required)
    parameters: dict[str, Any] = {"type": "object", "properties": {key: part.schema for key, part in order}}
    if required:
        parameters["required"] = required
    if definitions:
        parameters["$defs"] = definitions
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
    return {key: random.choice(part.fitting) for key, part in order if key in required or random.random() < 0.7}


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
