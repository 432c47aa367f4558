"""A JSON Schema pattern told to xgrammar's regular expressions.

xgrammar reads every pattern as a full match, ignores an anchor inside it, and cannot look around. It copies the
characters of a pattern into the grammar as they are, which has two consequences:

- Inside JSON text a quote, a backslash or a control character must be spelled as its escape, or the grammar would
  make the model write broken JSON.
- In a raw GLM value nothing marks the end but `</arg_value>`. An atom that can spell it would let the value run on
  through the end of its call, and with it any text, undeclared names included. Such atoms lose `<`.
"""

from dataclasses import dataclass
from functools import lru_cache

from prime_inference.toolcalls.regexes import (
    LAST,
    Atom,
    Ranges,
    Token,
    UnreadablePattern,
    character_ranges,
    complement,
    holds,
    minus,
    tokens,
)

_OPEN_ANGLE, _SLASH = ord("<"), ord("/")
_JSON_ESCAPES = {ord('"'): '\\\\"', ord("\\"): "\\\\\\\\", 10: "\\\\n", 13: "\\\\r", 9: "\\\\t"}
"""Characters that JSON text spells with a backslash, as a regular expression for that spelling."""
_NOT_IN_JSON: Ranges = ((0, 31), (34, 34), (92, 92))
_CLASS_SYNTAX = "\\]^-["
"""Characters that mean something inside a class; all other printable ones stand for themselves."""
_SURROGATES: Ranges = ((0xD800, 0xDFFF),)
_ASCII: Ranges = ((0, 127),)
_EXOTIC_SPACES: Ranges = minus(character_ranges(tokens(r"[\s\u2028\u2029]")[0]) or (), _ASCII)
"""Spaces beyond ASCII. xgrammar 0.2.7 dies of a complemented class that lists them all ("bitset::set"), so that
`\\S` and `.` let them through; the judge does not."""
_MOST_REPEATS = 100
"""Of one part in one count. xgrammar 0.2.7 takes more than 128 for a rule of its own and, where its cache is on, as in
every engine, dies of that rule inside JSON ("per_rule_fsm_hashes")."""
_MOST_SPLIT, _MOST_TEXT = 1000, 4096
"""The largest count that is written in pieces, and the most characters of these; any other is left as it is."""
_UNENFORCEABLE = {
    Atom.LOOK: "looks around",
    Atom.BOUNDARY: "uses a word boundary",
    Atom.BACKREFERENCE: "refers back",
    Atom.PROPERTY: "uses a Unicode property",
}


@dataclass(frozen=True)
class GrammarPattern:
    text: str | None
    """For xgrammar; None when it cannot be enforced at all."""
    looser: str = ""
    """Why the grammar cannot hold the pattern."""
    narrower: bool = False
    """True when some texts that match are out of reach."""


@lru_cache(maxsize=4096)
def to_grammar(pattern: str, raw: bool) -> GrammarPattern:
    """`raw`: the value of a GLM argument, written without quotes; else a string inside JSON text."""
    try:
        parts = tokens(pattern)
    except UnreadablePattern as error:
        return GrammarPattern(None, looser=str(error))
    for token in parts:
        inside = (token, *(member for member in token.items if isinstance(member, Token)))
        for atom in (member.atom for member in inside):
            if atom in _UNENFORCEABLE:
                return GrammarPattern(None, looser=f"the pattern {_UNENFORCEABLE[atom]}")
    anything = _atom(complement(()), raw)[0] + "*"
    spelled, narrower = [], False
    for alternative in _alternatives(parts):
        starts = bool(alternative) and alternative[0].atom is Atom.START
        ends = bool(alternative) and alternative[-1].atom is Atom.END
        body = alternative[int(starts) : len(alternative) - int(ends)]
        if any(token.atom in (Atom.START, Atom.END) for token in body):
            return GrammarPattern(None, looser="the pattern has an anchor inside")
        texts = [_token(token, raw) for token in body] if raw else _split_counts(body)
        narrower = narrower or any(lost for _, lost in texts) or (raw and not (starts and ends))
        spelled.append(f"{'' if starts else anything}{''.join(text for text, _ in texts)}{'' if ends else anything}")
    whole = spelled[0] if len(spelled) == 1 else "(?:" + "|".join(spelled) + ")"
    return GrammarPattern(f"^{whole}$", narrower=narrower)


def with_lengths(pattern: str, shortest: int, longest: int | None) -> str | None:
    """`pattern` with the length bounds inside, when it is one repeated character: `^[a-z]+$` and 2..5 ->
    `^[a-z]{2,5}$`.

    xgrammar ignores minLength and maxLength beside a pattern. None when the pattern has another form.
    """
    parts = tokens(pattern)
    if len(parts) != 4 or parts[0].atom is not Atom.START or parts[3].atom is not Atom.END:
        return None
    if parts[2].text not in ("*", "+") or character_ranges(parts[1]) is None:
        return None
    shortest = max(shortest, int(parts[2].text == "+"))
    if longest is not None and longest < shortest:
        return None
    return f"^{_repeated(parts[1].text, shortest, longest)}$"


def _split_counts(body: tuple[Token, ...]) -> list[tuple[str, bool]]:
    """Inside JSON, with large counts as `_repeated` writes them."""
    result: list[tuple[str, bool]] = []
    for index, token in enumerate(body):
        spelled, lost = _token(token, False)
        if token.atom is Atom.QUANTIFIER and spelled.startswith("{"):
            low, comma, high = spelled[1:-1].partition(",")
            if max(int(low or 0), int(high or 0)) > _MOST_REPEATS:
                start = _start_of_repeated(body, index)
                atom = "".join(text for text, _ in result[start:])
                result[start:] = [("", lost) for _, lost in result[start:]]
                spelled = _repeated(atom, int(low or 0), (int(high) if high else None) if comma else int(low))
        result.append((spelled, lost))
    return result


def _start_of_repeated(body: tuple[Token, ...], quantifier: int) -> int:
    """Where the character or group before a quantifier begins."""
    depth, start = 0, quantifier - 1
    while True:
        depth += (body[start].atom is Atom.CLOSE) - (body[start].atom is Atom.OPEN)
        if depth == 0:
            return start
        start -= 1


def _repeated(atom: str, low: int, high: int | None) -> str:
    """`low` to `high` times the atom, in pieces that say the same: `a{1,255}` is `a{1,100}a{0,100}a{0,55}`."""
    most = low if high is None else high
    if most <= _MOST_REPEATS or most > _MOST_SPLIT or most * len(atom) > _MOST_TEXT * _MOST_REPEATS:
        return f"{atom}{{{low},{'' if high is None else high}}}"
    text = ""
    while most > 0:
        least, piece = min(low, _MOST_REPEATS), min(most, _MOST_REPEATS)
        last = high is None and most <= _MOST_REPEATS
        text += f"{atom}{{{least},{'' if last else piece}}}"
        low, most = low - least, most - piece
    return text


def _alternatives(parts: tuple[Token, ...]) -> list[tuple[Token, ...]]:
    result: list[list[Token]] = [[]]
    depth = 0
    for token in parts:
        depth += (token.atom is Atom.OPEN) - (token.atom is Atom.CLOSE)
        if token.atom is Atom.OR and depth == 0:
            result.append([])
        else:
            result[-1].append(token)
    return [tuple(alternative) for alternative in result]


def _token(token: Token, raw: bool) -> tuple[str, bool]:
    ranges = character_ranges(token)
    if ranges is not None:
        return _atom(ranges, raw)
    if token.atom is Atom.OPEN:
        return "(?:", False
    if token.atom is Atom.QUANTIFIER:
        return token.text.removesuffix("?") if len(token.text) > 1 else token.text, False
    return token.text, False


def _atom(ranges: Ranges, raw: bool) -> tuple[str, bool]:
    """One character as xgrammar should read it, and whether some of them are lost."""
    if raw:
        runs_on = holds(ranges, _OPEN_ANGLE) and holds(ranges, _SLASH)
        return _spell(minus(ranges, ((_OPEN_ANGLE, _OPEN_ANGLE),)) if runs_on else ranges), runs_on
    plain = minus(ranges, _NOT_IN_JSON)
    if plain or not ranges:
        # xgrammar takes an escape for one character only outside a repetition, so a class goes without them.
        return _spell(plain), plain != ranges
    escapes = [text for code, text in _JSON_ESCAPES.items() if holds(ranges, code)]
    return (f"(?:{'|'.join(escapes)})", False) if escapes else (_spell(()), True)


def _spell(ranges: Ranges) -> str:
    """A class in xgrammar's syntax. `\\xNN` is not used: it would take a hexadecimal digit after it for its own."""
    if not ranges:
        return r"[^\s\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and chr(ranges[0][0]).isalnum():
        return chr(ranges[0][0])
    if ranges[-1][1] != LAST:
        return f"[{_spell_ranges(minus(ranges, _SURROGATES))}]"
    outside = minus(complement(ranges), _EXOTIC_SPACES)
    return f"[^{_spell_ranges(minus(outside, _SURROGATES))}]" if outside else r"[\s\S]"


def _spell_ranges(ranges: Ranges) -> str:
    return "".join(_spell_one(low) if low == high else f"{_spell_one(low)}-{_spell_one(high)}" for low, high in ranges)


def _spell_one(code: int) -> str:
    if chr(code) in _CLASS_SYNTAX:
        return "\\" + chr(code)
    return chr(code) if chr(code).isprintable() else f"\\u{code:04x}"
