"""JSON as RFC 8259 and every client's parser read it: no NaN, no Infinity, no Python limits."""

import json
from typing import Any

LONGEST_EXACT_INTEGER = 400
"""Digits. Past it an integer is read as a float (infinite, as in JavaScript), since Python refuses over 4,300
digits."""


class NotJson(ValueError):
    """The text is not JSON."""


def _constant(name: str) -> Any:
    raise NotJson(f"{name} is not JSON")


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST_EXACT_INTEGER else float(digits)


def parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_constant, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise NotJson(str(error)) from error
    except RecursionError as error:
        raise NotJson("nested too deeply") from error


def spell(value: Any) -> str:
    """As GLM's chat template spells a value that is not a string: non-ASCII stays as it is."""
    return json.dumps(value, ensure_ascii=False)
