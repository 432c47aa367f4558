"""BFCL v4's functions and answers as samples. What is right or wrong is decided by the `jsonschema` package, not by us."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

from prime_inference.toolcalls.suite.generate import Sample
from prime_inference.toolcalls.suite.public import BFCL_FILES

TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
OTHER_VALUES: tuple[Any, ...] = ({"x": 1}, ["x"], "word", 12.5, True)


@dataclass
class Taken:
    """What became of the files' records."""

    functions: int = 0
    answers: int = 0
    not_fitting: int = 0
    """Answers that their own function's schema forbids."""
    with_undeclared_keys: int = 0
    samples: list[Sample] = field(default_factory=list)


def read(folder: Path) -> Taken:
    """Each function once, with all the answers that the files have for it."""
    taken = Taken()
    answers: dict[str, list[dict[str, Any]]] = {}
    for function, arguments in answered(folder):
        answers.setdefault(json.dumps(function["parameters"]), []).append(arguments)
    for number, (text, given) in enumerate(answers.items()):
        parameters = json.loads(text)
        plain = in_drafts_words(parameters)
        check = Draft7Validator(plain)
        fitting = [one for one in given if check.is_valid(one)]
        declared = [one for one in fitting if only_declared_keys(one, plain)]
        taken.functions += 1
        taken.answers += len(given)
        taken.not_fitting += len(given) - len(fitting)
        taken.with_undeclared_keys += len(fitting) - len(declared)
        right = tuple(in_declared_order(one, plain) for one in declared)
        wrong = tuple(wrongly(right[0], plain, check)) if right else ()
        taken.samples.append(Sample(number, ("bfcl",), parameters, right, wrong, (), ()))
    return taken


def answered(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for category in BFCL_FILES:
        name = f"BFCL_v4_{category}.json"
        questions = {entry["id"]: entry for entry in lines(folder / name)}
        for entry in lines(folder / "possible_answer" / name):
            functions = {one["name"]: one for one in questions[entry["id"]]["function"]}
            for call in entry["ground_truth"]:
                for function, possible in call.items():
                    if function in functions:
                        yield functions[function], one_of(possible)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def one_of(possible: dict[str, list[Any]]) -> dict[str, Any]:
    """Of each argument the first value that the authors accept; "" says that it may be left out, which it is if nothing
    else is accepted."""
    chosen = {key: next((value for value in values if value != ""), None) for key, values in possible.items()}
    return {key: inside(value) for key, value in chosen.items() if value is not None}


def inside(value: Any) -> Any:
    """An object's values are again lists of what is accepted."""
    if isinstance(value, dict):
        return one_of({key: one if isinstance(one, list) else [one] for key, one in value.items()})
    return [inside(one) for one in value] if isinstance(value, list) else value


def in_drafts_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [in_drafts_words(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: in_drafts_words(value) for key, value in schema.items()}
    if isinstance(kept.get("type"), str):
        kept["type"] = TYPES.get(kept["type"], kept["type"])
        if kept["type"] is None:
            del kept["type"]
    return kept


def only_declared_keys(value: Any, schema: Any) -> bool:
    """Of every object that declares any."""
    if isinstance(value, dict) and isinstance(schema, dict) and "properties" in schema:
        parts = schema["properties"]
        return set(value) <= set(parts) and all(only_declared_keys(one, parts[key]) for key, one in value.items())
    if isinstance(value, list) and isinstance(schema, dict):
        return all(only_declared_keys(one, schema.get("items", {})) for one in value)
    return True


def in_declared_order(value: Any, schema: Any) -> Any:
    if isinstance(value, dict) and isinstance(schema, dict):
        properties = schema.get("properties", {})
        keys = [key for key in properties if key in value] + [key for key in value if key not in properties]
        return {key: in_declared_order(value[key], properties.get(key, {})) for key in keys}
    if isinstance(value, list) and isinstance(schema, dict):
        return [in_declared_order(one, schema.get("items", {})) for one in value]
    return value


def wrongly(right: dict[str, Any], schema: Any, check: Draft7Validator) -> Iterator[tuple[str, dict[str, Any]]]:
    for key in schema.get("required", ()):
        less = {name: value for name, value in right.items() if name != key}
        if not check.is_valid(less):
            yield "missing_key", less
    for key in right:
        for value in OTHER_VALUES:
            other = {**right, key: value}
            if not check.is_valid(other):
                yield "another_type", other
                break
