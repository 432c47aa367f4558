"""The text form of GLM tool calls, both ways.

    compact (4.7, 5.x)   <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>
    lines (4.5, 4.6)     <tool_call>NAME\\n<arg_key>K</arg_key>\\n<arg_value>V</arg_value>\\n</tool_call>

A marker inside a value is the same token as a structural one, so that only position tells them apart: a value ends
at the first `</arg_value>` after which, white space aside, a `<arg_key>` or a `</tool_call>` stands; every other
marker in it is data. Where the schema wants JSON and no plain string, what stands inside a JSON string is data, too.
Nothing is unescaped and nothing is guessed: what does not follow the form is a `Broken` call, with its text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from prime_inference.toolcalls.errors import Unspellable
from prime_inference.toolcalls.kinds import STRING
from prime_inference.toolcalls.strict_json import NotJson, parse, spell
from prime_inference.toolcalls.values import Argument, read_value, spell_value

CALL, CALL_END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
MARKERS = (CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END)
_SPACE = " \t\r\n"
_QUOTE_OR_ESCAPE = re.compile(r'["\\]')


class Form(StrEnum):
    COMPACT = "compact"
    LINES = "lines"


class Typing(Protocol):
    """What is known of a declared tool's arguments."""

    def argument(self, key: str) -> Argument: ...


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str
    """JSON text of an object. A key that the model wrote twice stands twice, as it was written."""


@dataclass(frozen=True)
class Broken:
    """A call whose text does not follow the form. `unfinished`: the text ended before the call did."""

    name: str
    body: str
    """All that the model wrote after the name, as it wrote it."""
    unfinished: bool


Event = Text | Call | Broken


def encode(name: str, arguments: Mapping[str, Any], tool: Typing, form: Form = Form.COMPACT) -> str:
    """The wire text of one call. Raises `Unspellable` for what would be read back as something else."""
    newline = "\n" if form is Form.LINES else ""
    pairs = [
        f"{newline}{KEY}{key}{KEY_END}{newline}{VALUE}{spell_value(value, tool.argument(key))}{VALUE_END}"
        for key, value in arguments.items()
    ]
    text = f"{CALL}{name}{''.join(pairs)}{newline}{CALL_END}"
    decoder = Decoder({name: tool})
    events = [*decoder.feed(text), *decoder.finish(natural=True)]
    if len(events) == 1 and isinstance(events[0], Call) and events[0].name == name:
        back = parse(events[0].arguments)
        if list(back) == list(arguments) and spell(back) == spell(dict(arguments)):
            return text
    raise Unspellable(f"a call of {name!r} with these arguments has no spelling in GLM's form")


class _At(StrEnum):
    TEXT = "text"
    NAME = "name"
    KEY = "key"
    GAP = "gap"
    """Between a key and its value."""
    VALUE = "value"
    NEXT = "next"
    """After a pair: another key, or the end of the call."""
    BROKEN = "broken"


class Decoder:
    """Model text in, in pieces of any size; text and complete calls out, in order, as soon as they are certain.

    Text is passed on at once, but for what may still become a marker. White space around calls belongs to the form
    and is dropped. A call comes out whole, when its end has been read: a call that is cut off must not reach a
    client in part.
    """

    def __init__(self, tools: Mapping[str, Typing]) -> None:
        self._tools = tools
        self._at = _At.TEXT
        self._buffer = ""
        self._events: list[Event] = []
        self._blank = ""
        self._is_blank = True
        self._had_call = False
        self.stray_markers = 0
        """Markers seen in text, outside any call: what is left of a call that lost its beginning."""
        self._reset_call()

    def _reset_call(self) -> None:
        self._body: list[str] = []
        self._name = ""
        self._key = ""
        self._key_parts: list[str] = []
        self._value: list[str] = []
        self._strings: _Strings | None = None
        self._passed: int | None = None
        self._pairs: list[tuple[str, str]] = []

    def feed(self, text: str) -> list[Event]:
        self._buffer += text
        while self._step():
            pass
        return self._take()

    def finish(self, natural: bool) -> list[Event]:
        """The text is over. `natural`: the model ended it, so that a call which lacks nothing but its end is
        complete."""
        while natural and self._passed is not None:
            self._go_back()
            while self._step():
                pass
        if self._at is _At.TEXT:
            self._emit_text(self._buffer)
            if self._blank and not self._had_call:
                self._events.append(Text(self._blank))
        else:
            ended = self._at is _At.VALUE and self._buffer.rstrip(_SPACE) == VALUE_END
            if ended:
                self._close_value()
            if natural and (ended or (self._at is _At.NEXT and not self._buffer.strip(_SPACE))):
                self._end_call()
            else:
                self._body.append(self._buffer)
                self._events.append(Broken(self._name, "".join(self._body), unfinished=True))
        self._buffer = ""
        return self._take()

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # ── one step: True when it got further ───────────────────────────────────────────────────────────────────

    def _step(self) -> bool:
        steps = {
            _At.TEXT: self._text,
            _At.NAME: self._take_name,
            _At.KEY: self._take_key,
            _At.GAP: lambda: self._expect({VALUE: _At.VALUE}),
            _At.VALUE: self._take_value,
            _At.NEXT: lambda: self._expect({KEY: _At.KEY, CALL_END: _At.TEXT}),
            _At.BROKEN: self._skip_broken,
        }
        return steps[self._at]()

    def _consume(self, length: int) -> str:
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        self._body.append(taken)
        return taken

    def _text(self) -> bool:
        at, marker = _first(self._buffer, MARKERS)
        if marker == "":
            certain = len(self._buffer) - _partial(self._buffer, MARKERS)
            self._emit_text(self._buffer[:certain])
            self._buffer = self._buffer[certain:]
            return False
        if marker != CALL:
            self.stray_markers += 1
            self._emit_text(self._buffer[: at + len(marker)])
            self._buffer = self._buffer[at + len(marker) :]
            return True
        self._emit_text(self._buffer[:at])
        self._blank, self._is_blank = "", True
        self._buffer = self._buffer[at + len(CALL) :]
        self._reset_call()
        self._at = _At.NAME
        return True

    def _emit_text(self, text: str) -> None:
        if self._is_blank:
            text, self._blank = self._blank + text, ""
            if not text.strip(_SPACE):
                self._blank = text
                return
            self._is_blank = False
        if text:
            self._events.append(Text(text))

    def _take_name(self) -> bool:
        at, marker = _first(self._buffer, MARKERS)
        if marker == "":
            return False
        self._name = self._consume(at).rstrip(_SPACE)
        self._body = []
        if marker == KEY:
            self._consume(len(KEY))
            self._at = _At.KEY
        elif marker == CALL_END:
            self._consume(len(CALL_END))
            self._end_call()
        else:
            self._at = _At.BROKEN
        return True

    def _take_key(self) -> bool:
        at = self._buffer.find(KEY_END)
        if at < 0:
            self._key_parts.append(self._consume(len(self._buffer) - _partial(self._buffer, (KEY_END,))))
            return False
        self._key = "".join([*self._key_parts, self._consume(at)])
        self._key_parts.clear()
        self._consume(len(KEY_END))
        self._at = _At.GAP
        return True

    def _expect(self, choices: dict[str, _At]) -> bool:
        rest = self._buffer.lstrip(_SPACE)
        self._consume(len(self._buffer) - len(rest))
        for marker, then in choices.items():
            if rest.startswith(marker):
                self._consume(len(marker))
                if then is _At.TEXT:
                    self._end_call()
                else:
                    self._at = then
                    self._strings = self._json_strings() if then is _At.VALUE else None
                return True
        if not any(marker.startswith(rest) for marker in choices):
            self._at = _At.BROKEN
            return True
        return False

    def _take_value(self) -> bool:
        at = self._buffer.find(VALUE_END)
        if at < 0:
            certain = len(self._buffer) - _partial(self._buffer, (VALUE_END,))
            if certain:
                self._add_to_value(certain)
            return False
        if at:
            self._add_to_value(at)
        rest = self._buffer[len(VALUE_END) :].lstrip(_SPACE)
        if rest.startswith((KEY, CALL_END)):
            if self._strings is None or not self._strings.open:
                if self._passed is not None and not _is_json("".join(self._value)):
                    self._go_back()
                else:
                    self._close_value()
                return True
            if self._passed is None:
                self._passed = sum(map(len, self._value))
        elif KEY.startswith(rest) or CALL_END.startswith(rest):
            return False
        self._add_to_value(len(VALUE_END))
        return True

    def _add_to_value(self, length: int) -> None:
        text = self._consume(length)
        self._value.append(text)
        if self._strings is not None:
            self._strings.feed(text)

    def _json_strings(self) -> "_Strings | None":
        tool = self._tools.get(self._name)
        return _Strings() if tool is not None and not STRING & tool.argument(self._key).kinds else None

    def _go_back(self) -> None:
        """The value is no JSON after all: it ended where it first could have."""
        assert self._passed is not None
        value, body = "".join(self._value), "".join(self._body)
        rest = value[self._passed :]
        self._value, self._body = [value[: self._passed]], [body[: len(body) - len(rest)]]
        self._buffer = rest + self._buffer
        self._strings, self._passed = None, None

    def _close_value(self) -> None:
        self._consume(len(VALUE_END))
        self._pairs.append((self._key, "".join(self._value)))
        self._value = []
        self._strings, self._passed = None, None
        self._at = _At.NEXT

    def _skip_broken(self) -> bool:
        at = self._buffer.find(CALL_END)
        if at < 0:
            self._consume(len(self._buffer) - _partial(self._buffer, (CALL_END,)))
            return False
        self._consume(at)
        self._buffer = self._buffer[len(CALL_END) :]
        self._events.append(Broken(self._name, "".join(self._body), unfinished=False))
        self._after_call()
        return True

    def _end_call(self) -> None:
        tool = self._tools.get(self._name)
        parts = [
            f"{spell(key)}: {read_value(text, tool.argument(key)) if tool else _untyped(text)}"
            for key, text in self._pairs
        ]
        self._events.append(Call(self._name, "{" + ", ".join(parts) + "}"))
        self._after_call()

    def _after_call(self) -> None:
        self._at = _At.TEXT
        self._is_blank, self._had_call = True, True
        self._reset_call()


class _Strings:
    """Whether JSON that comes in pieces is inside one of its strings."""

    def __init__(self) -> None:
        self.open = False
        self._escaped = False

    def feed(self, text: str) -> None:
        at = 1 if self._escaped and text else 0
        self._escaped = self._escaped and not text
        while (found := _QUOTE_OR_ESCAPE.search(text, at)) is not None:
            at = found.end()
            if found[0] == '"':
                self.open = not self.open
            elif self.open:
                self._escaped = at == len(text)
                at += 1


def _is_json(text: str) -> bool:
    try:
        parse(text)
    except NotJson:
        return False
    return True


def _untyped(text: str) -> str:
    """An argument of a tool that is not declared: nothing says what it is, so it stays the text it was."""
    return spell(text)


def _first(text: str, markers: tuple[str, ...]) -> tuple[int, str]:
    """The earliest marker in `text` and where; (-1, "") when there is none."""
    at = text.find("<")
    while at >= 0:
        for marker in markers:
            if text.startswith(marker, at):
                return at, marker
        at = text.find("<", at + 1)
    return -1, ""


def _partial(text: str, markers: tuple[str, ...]) -> int:
    """How many characters at the end of `text` may be the beginning of a marker."""
    at = text.rfind("<", max(0, len(text) - max(map(len, markers)) + 1))
    return len(text) - at if at >= 0 and any(marker.startswith(text[at:]) for marker in markers) else 0
