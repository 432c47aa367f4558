"""Tools and prompts of the live run: small enough for a 135M model on two cores, with free strings and nesting.

Each prompt is an agent's second turn: the first one, the same for all prompts of a family, shows one right call and its
result, which is what tells an untrained model where a string ends. Every schema ends in few tokens when its strings do;
the strings are the model's own business, and a request whose string never ends is cut by the token budget, and counted
as cut.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

CITIES = ("Paris", "Lima", "Oslo", "Cairo", "Kyoto", "Quito", "Turin", "Perth")
PEOPLE = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Tony")
THINGS = ("tea", "bread", "a lamp", "two pens", "a map", "paper")
WORDS = {"type": "string"}
SHORT = {"type": "string", "minLength": 1, "maxLength": 8}


@dataclass(frozen=True)
class LiveCase:
    number: int
    family: str
    tool: dict[str, Any]
    """One entry of `tools`."""
    messages: list[dict[str, Any]]
    named: bool
    """`tool_choice` names the tool; else it is `required`, without parallel calls."""
    streamed: bool


def _object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }


def _weather(random: Random) -> tuple[dict[str, Any], str]:
    days = random.randint(1, 9)
    schema = _object(city=WORDS, days={"type": "integer", "minimum": 1, "maximum": 9})
    return schema, f"Weather in {random.choice(CITIES)} for {days} days?"


def _book(random: Random) -> tuple[dict[str, Any], str]:
    schema = _object(title=WORDS, author=_object(first=SHORT, last=SHORT))
    return schema, f"Look up a book about {random.choice(THINGS)} by {random.choice(PEOPLE)} Smith."


def _order(random: Random) -> tuple[dict[str, Any], str]:
    item = _object(sku={"enum": ["A1", "B2", "C3"]}, count={"type": "integer", "minimum": 1, "maximum": 20})
    schema = _object(items={"type": "array", "items": item, "minItems": 1, "maxItems": 2})
    return schema, f"Order {random.randint(1, 20)} of B2."


def _note(random: Random) -> tuple[dict[str, Any], str]:
    tags = {"type": "array", "items": {"enum": ["work", "home", "idea"]}, "maxItems": 2}
    return _object(text=WORDS, tags=tags), f"Note for home: buy {random.choice(THINGS)}."


def _convert(random: Random) -> tuple[dict[str, Any], str]:
    currency = {"enum": ["EUR", "USD", "JPY"]}
    schema = _object(amount={"type": "integer", "minimum": 0, "maximum": 999}, source=currency, target=currency)
    return schema, f"Convert {random.randint(1, 999)} USD to EUR."


def _remind(random: Random) -> tuple[dict[str, Any], str]:
    schema = _object(at={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"}, about={"type": ["string", "null"]})
    return schema, f"Remind me at {random.randint(10, 20)}:30 about {random.choice(THINGS)}."


def _search(random: Random) -> tuple[dict[str, Any], str]:
    filters = _object(["language"], language={"enum": ["en", "fr"]}, year={"type": "integer", "minimum": 1990})
    return _object(query=WORDS, filters=filters), f"Search English pages about {random.choice(CITIES)}."


def _switch(random: Random) -> tuple[dict[str, Any], str]:
    schema = _object(on={"type": "boolean"}, reason=WORDS)
    return schema, f"Switch the light {random.choice(('on', 'off'))}, {random.choice(PEOPLE)} asked for it."


def _route(random: Random) -> tuple[dict[str, Any], str]:
    degree = {"type": "integer", "minimum": -90, "maximum": 90}
    point = {"$ref": "#/$defs/point"}
    schema = _object(start=point, end=point)
    return {**schema, "$defs": {"point": _object(x=degree, y=degree)}}, "Route from 1, 2 to 30, 40."


def _contact(random: Random) -> tuple[dict[str, Any], str]:
    zip_code = {"type": "string", "pattern": "^[0-9]{5}$"}
    schema = _object(name=WORDS, address=_object(["zip"], zip=zip_code, city=SHORT))
    return schema, f"Save {random.choice(PEOPLE)}, zip 75001, {random.choice(CITIES)}."


FAMILIES: dict[str, Callable[[Random], tuple[dict[str, Any], str]]] = {
    "weather": _weather,
    "book": _book,
    "order": _order,
    "note": _note,
    "convert": _convert,
    "remind": _remind,
    "search": _search,
    "switch": _switch,
    "route": _route,
    "contact": _contact,
}


EARLIER: dict[str, tuple[str, dict[str, Any]]] = {
    "weather": ("Weather in Rome for 2 days?", {"city": "Rome", "days": 2}),
    "book": ("A book on trees by Jo Lee?", {"title": "Trees", "author": {"first": "Jo", "last": "Lee"}}),
    "order": ("Order 3 of A1.", {"items": [{"sku": "A1", "count": 3}]}),
    "note": ("Note for work: call Tom.", {"text": "call Tom", "tags": ["work"]}),
    "convert": ("Convert 5 EUR to JPY.", {"amount": 5, "source": "EUR", "target": "JPY"}),
    "remind": ("Remind me at 09:15 about milk.", {"at": "09:15", "about": "milk"}),
    "search": ("Search French pages about wine.", {"query": "wine", "filters": {"language": "fr"}}),
    "switch": ("Switch the light on, Tom is here.", {"on": True, "reason": "Tom is here"}),
    "route": ("Route from 5, 6 to 7, 8.", {"start": {"x": 5, "y": 6}, "end": {"x": 7, "y": 8}}),
    "contact": ("Save Jo, zip 10115, Rome.", {"name": "Jo", "address": {"zip": "10115", "city": "Rome"}}),
}


def _messages(family: str, prompt: str) -> list[dict[str, Any]]:
    earlier, arguments = EARLIER[family]
    call = {"id": "call_0", "type": "function", "function": {"name": family, "arguments": json.dumps(arguments)}}
    return [
        {"role": "user", "content": earlier},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "done"},
        {"role": "user", "content": prompt},
    ]


def live_cases(count: int, seed: int) -> list[LiveCase]:
    """Families in turn; each choice with each way of answering."""
    random = Random(seed)
    cases = []
    for number in range(count):
        family = list(FAMILIES)[number % len(FAMILIES)]
        schema, prompt = FAMILIES[family](random)
        tool = {"type": "function", "function": {"name": family, "parameters": schema}}
        turn = number // len(FAMILIES)
        messages = _messages(family, prompt)
        cases.append(LiveCase(number, family, tool, messages, named=turn % 2 == 0, streamed=turn // 2 % 2 == 0))
    return cases
