"""One argument between its GLM spelling and its JSON text.

Reading, by what the schema admits for the argument:

- only strings: the text, byte for byte, whatever it looks like;
- no strings: the text is JSON and is passed on as written (`5.0` stays `5.0`); if it is not JSON it becomes a JSON
  string of the text, so that the verdict is a mismatch in a call that parses, not a broken call;
- strings and others: the JSON reading where that value fits the schema, else the text. Where a string would be
  taken for JSON, the model (and `spell_value`) writes it as a JSON string; quotes around any other text are part of
  the text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prime_inference.toolcalls.kinds import STRING, Kinds
from prime_inference.toolcalls.strict_json import NotJson, parse, spell


@dataclass(frozen=True)
class Argument:
    """What the schema says of one argument: the types it admits and, for a mixture, whether a value fits."""

    kinds: Kinds
    fits: Callable[[Any], bool]


def read_value(text: str, argument: Argument) -> str:
    """The JSON text of a value that the wire spells `text`."""
    if argument.kinds == STRING:
        return spell(text)
    try:
        value = parse(text)
    except NotJson:
        return spell(text)
    if "string" not in argument.kinds:
        return text
    if isinstance(value, str):
        return spell(value) if _needs_quotes(value, argument) else spell(text)
    return text if argument.fits(value) else spell(text)


def _needs_quotes(text: str, argument: Argument) -> bool:
    """Whether the bare text would be read as something other than this very string."""
    return read_value(text, argument) != spell(text)


def spell_value(value: Any, argument: Argument) -> str:
    """The wire's spelling of a value: what `read_value` turns back into it. `</arg_value>` in JSON is escaped."""
    if isinstance(value, str) and (argument.kinds == STRING or not _needs_quotes(value, argument)):
        return value
    return spell(value).replace("</arg_value>", "\\u003c/arg_value>")
