"""ECMA-262 regular expressions, as JSON Schema means them, told to the two engines that do not speak them.

`to_python` gives the pattern for a search in Python with ECMA's meaning (ASCII `\\d` and `\\w`, `$` only at the
end, no newline in `.`, `\\p{..}` spelled out). `to_grammar` gives the pattern for xgrammar, which reads every
pattern as a full match, cannot look around, and ignores anchors in the middle. In a raw GLM value nothing marks the
end but `</arg_value>`, so there a wide atom (`.`, `[^..]`, `\\S`) must not be able to spell that marker, or the
grammar would let a value run on through the end of its call: it loses `<`.
"""

import re
import sys
import unicodedata
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import groupby

from prime_inference.toolcalls.bounded_search import BoundedPattern, Unsearchable


class Atom(StrEnum):
    TEXT = "text"
    DOT = "dot"
    SHORTHAND = "shorthand"
    PROPERTY = "property"
    CLASS = "class"
    START = "start"
    END = "end"
    OPEN = "open"
    CLOSE = "close"
    OR = "or"
    QUANTIFIER = "quantifier"
    LOOK = "look"
    BOUNDARY = "boundary"
    BACKREFERENCE = "backreference"


@dataclass(frozen=True)
class Token:
    atom: Atom
    text: str
    items: tuple["Token | tuple[str, str]", ...] = field(default=())
    """For a class: its members, each a shorthand, a property or a range of characters (low, high)."""


class UnreadablePattern(ValueError):
    """Not a regular expression that ECMA-262 accepts."""


_TOKEN = re.compile(
    r"""(?P<look>\(\?<?[=!])
      |(?P<open>\((?:\?:|\?<[A-Za-z_]\w*>)?(?!\?))
      |(?P<close>\))|(?P<or>\|)|(?P<start>\^)|(?P<end>\$)|(?P<dot>\.)
      |(?P<quantifier>(?:[*+?]|\{\d+(?:,\d*)?\})\??)
      |(?P<class>\[\^?(?:\\.|[^\]\\])*\])
      |(?P<property>\\[pP]\{[A-Za-z_=]+\})
      |(?P<shorthand>\\[dDwWsS])
      |(?P<boundary>\\[bB])
      |(?P<backreference>\\[1-9]\d*|\\k<\w+>)
      |(?P<text>\\u\{[0-9a-fA-F]+\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\c[A-Za-z]|\\.|[^\\(\[*+?])""",
    re.VERBOSE | re.DOTALL,
)
_MEMBER = re.compile(
    r"\\[pP]\{[A-Za-z_=]+\}|\\[dDwWsS]|\\u\{[0-9a-fA-F]+\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\c[A-Za-z]|\\.|[^\\]",
    re.DOTALL,
)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0", "b": "\b"}
Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint code point ranges, both ends included."""

LAST = sys.maxunicode
_SHORTHANDS: dict[str, Ranges] = {
    "d": ((48, 57),),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "s": (
        (9, 13),
        (32, 32),
        (0xA0, 0xA0),
        (0x1680, 0x1680),
        (0x2000, 0x200A),
        (0x2028, 0x2029),
        (0x202F, 0x202F),
        (0x205F, 0x205F),
        (0x3000, 0x3000),
        (0xFEFF, 0xFEFF),
    ),
}
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))


@lru_cache(maxsize=4096)
def tokens(pattern: str) -> tuple[Token, ...]:
    result: list[Token] = []
    at, depth = 0, 0
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None or found.lastgroup is None:
            raise UnreadablePattern(f"cannot read {pattern!r} at position {at}")
        atom, text = Atom(found.lastgroup), found.group()
        depth += (atom in (Atom.OPEN, Atom.LOOK)) - (atom is Atom.CLOSE)
        if depth < 0:
            raise UnreadablePattern(f"unmatched ) in {pattern!r}")
        if atom is Atom.QUANTIFIER and (
            not result or result[-1].atom in (Atom.QUANTIFIER, Atom.OPEN, Atom.LOOK, Atom.OR, Atom.START)
        ):
            raise UnreadablePattern(f"nothing to repeat in {pattern!r} at position {at}")
        result.append(Token(atom, text, _members(text) if atom is Atom.CLASS else ()))
        at = found.end()
    if depth:
        raise UnreadablePattern(f"unmatched ( in {pattern!r}")
    return tuple(result)


def _character(text: str) -> str:
    if len(text) == 1:
        return text
    kind, rest = text[1], text[2:].strip("{}")
    if kind in "ux" and rest:
        return chr(int(rest, 16))
    if kind == "c" and rest:
        return chr(ord(rest) % 32)
    return _ESCAPES.get(kind, kind)


def _members(text: str) -> tuple[Token | tuple[str, str], ...]:
    body = text[2:-1] if text.startswith("[^") else text[1:-1]
    parts = _MEMBER.findall(body)
    members: list[Token | tuple[str, str]] = []
    at = 0
    while at < len(parts):
        part = parts[at]
        if part[:2] in ("\\p", "\\P") and "{" in part:
            members.append(Token(Atom.PROPERTY, part))
        elif part[0] == "\\" and part[1] in "dDwWsS":
            members.append(Token(Atom.SHORTHAND, part))
        elif at + 2 < len(parts) and parts[at + 1] == "-" and parts[at + 2] not in ("\\d", "\\w", "\\s"):
            low, high = _character(part), _character(parts[at + 2])
            if low > high:
                raise UnreadablePattern(f"range out of order in {text!r}")
            members.append((low, high))
            at += 2
        else:
            members.append((_character(part), _character(part)))
        at += 1
    return tuple(members)


# ── what one character may be ────────────────────────────────────────────────────────────────────────────────


def complement(ranges: Ranges) -> Ranges:
    result, start = [], 0
    for low, high in ranges:
        if start < low:
            result.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        result.append((start, LAST))
    return tuple(result)


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return tuple(result)


def minus(ranges: Ranges, removed: Ranges) -> Ranges:
    return complement(merged([*complement(ranges), *removed]))


def holds(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


def character_ranges(token: Token) -> Ranges | None:
    """The characters that a one-character atom matches; None for any other token."""
    match token.atom:
        case Atom.TEXT:
            code = ord(_character(token.text))
            return ((code, code),)
        case Atom.DOT:
            return complement(_LINE_ENDS)
        case Atom.SHORTHAND:
            inside = _SHORTHANDS[token.text[1].lower()]
            return inside if token.text[1].islower() else complement(inside)
        case Atom.PROPERTY:
            inside = _category(token.text[3:-1])
            return inside if token.text[1] == "p" else complement(inside)
        case Atom.CLASS:
            return _class_ranges(token)
        case _:
            return None


def _class_ranges(token: Token) -> Ranges:
    found: list[tuple[int, int]] = []
    for member in token.items:
        if isinstance(member, Token):
            found.extend(character_ranges(member) or ())
        else:
            found.append((ord(member[0]), ord(member[1])))
    inside = merged(found)
    return complement(inside) if token.text.startswith("[^") else inside


@lru_cache(maxsize=64)
def _category(name: str) -> Ranges:
    long_names = {"Letter": "L", "Mark": "M", "Number": "N", "Punctuation": "P", "Separator": "Z", "Symbol": "S"}
    short = name.rsplit("=", maxsplit=1)[-1]
    prefix = long_names.get(short, short)
    if not re.fullmatch("[LMNPSZC][a-z]?", prefix):
        raise UnreadablePattern(f"the Unicode property {name!r} is not supported")
    return merged([run for category, runs in categories().items() if category.startswith(prefix) for run in runs])


@lru_cache(maxsize=1)
def categories() -> dict[str, list[tuple[int, int]]]:
    """Unicode's general categories as ranges. Reading the whole table takes a quarter of a second, once a process."""
    result: dict[str, list[tuple[int, int]]] = {}
    for category, run in groupby(range(LAST + 1), lambda code: unicodedata.category(chr(code))):
        codes = list(run)
        result.setdefault(category, []).append((codes[0], codes[-1]))
    return result


def _spell(code: int) -> str:
    character = chr(code)
    if character.isascii() and character.isalnum():
        return character
    if code < 256:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def spell_class(ranges: Ranges) -> str:
    """A character class in the syntax that Python and xgrammar share (xgrammar never sees `\\U`, see `to_grammar`)."""
    if not ranges:
        return r"[^\s\S]"
    if ranges[-1][1] == LAST and (len(ranges) > 1 or ranges[0][0] == 0):
        outside = complement(ranges)
        return f"[^{_spell_ranges(outside)}]" if outside else r"[\s\S]"
    return f"[{_spell_ranges(ranges)}]"


def _spell_ranges(ranges: Ranges) -> str:
    return "".join(_spell(low) if low == high else f"{_spell(low)}-{_spell(high)}" for low, high in ranges)


# ── for Python ───────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=4096)
def to_python(pattern: str) -> BoundedPattern:
    """Raises `UnreadablePattern` when ECMA-262 itself, or the engine for a reason of its own, cannot read the pattern."""
    try:
        return BoundedPattern("".join(_python(token) for token in tokens(pattern)))
    except Unsearchable as error:
        raise UnreadablePattern(str(error)) from error


def _python(token: Token) -> str:
    if token.atom is Atom.TEXT:
        return re.escape(_character(token.text))
    ranges = character_ranges(token)
    if ranges is not None:
        return spell_class(ranges) if ranges else "(?:(?!))"
    if token.atom is Atom.OPEN and token.text.startswith("(?<"):
        return "(?P" + token.text[2:]
    if token.atom is Atom.BACKREFERENCE and token.text.startswith("\\k"):
        return f"(?P={token.text[3:-1]})"
    return {Atom.END: r"\Z", Atom.BOUNDARY: f"(?a:{token.text})"}.get(token.atom, token.text)
