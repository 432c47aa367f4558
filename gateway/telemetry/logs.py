"""Structured logs: one JSON object a line on standard error. No prompt, no answer and no key is ever logged.

An exception's own text may quote what it choked on, which may be any of these: what is logged of one is its type and the
code it came through.

A line a request is made on the request path, so it costs little: what nobody reads (the caller's place in the source,
names of threads and processes) is not looked up, a line is encoded in one go, and the lines of one turn of the event loop
leave in one write.
"""

import asyncio
import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

MANY_BYTES = 64 * 1024
"""Lines held before they are written whatever the event loop does."""

logger = logging.getLogger("gateway")

_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_encode = msgspec.json.Encoder(enc_hook=str).encode


_USUAL = vars(logging.LogRecord("", logging.INFO, "", 0, "", (), None))


class Event(logging.LogRecord):
    """An informational line that the request path makes: the usual attributes are copied in one go, and what it tells is
    one attribute and not one each."""

    def __init__(self, name: str, message: str, fields: dict[str, Any]) -> None:
        self.__dict__.update(_USUAL)
        self.name = name
        self.msg = message
        self.created = time.time()
        self.fields = fields


def tell(to: logging.Logger, message: str, fields: dict[str, Any]) -> None:
    """As `to.info(message, extra=fields)`, for a third of its cost. The dictionary is kept."""
    if to.isEnabledFor(logging.INFO):
        to.handle(Event(to.name, message, fields))


def configure_logging(level: str) -> None:
    root = logging.getLogger()
    root.handlers[:] = [LineHandler(sys.stderr.buffer)]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and stop lines say what ours say
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # documented in Python's logging HOWTO, under "Optimization"


class JsonLines:
    """`{"time", "level", "logger", "message"}`, then what went wrong, then what the call gave as `extra`."""

    def __init__(self) -> None:
        self._second = 0
        self._second_text = ""

    def line(self, record: logging.LogRecord) -> bytes:
        """Without the line's end."""
        shown: dict[str, Any] = {
            "time": self._time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            shown["exc_info"] = "\n".join(_told(record.exc_info[1], set()))
        if record.stack_info:
            shown["stack_info"] = record.stack_info
        if isinstance(record, Event):
            shown |= record.fields
        else:
            for name, value in record.__dict__.items():
                if name not in _KNOWN:
                    shown[name] = value
        try:
            return _encode(shown)
        except UnicodeEncodeError:
            # Half a surrogate pair, as a client's text may hold one.
            return json.dumps(shown, default=str).encode()

    def _time(self, created: float) -> str:
        """Local time as logging writes it, to the millisecond."""
        second = int(created)
        if second != self._second:
            self._second, self._second_text = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._second_text},{int((created - second) * 1000):03d}"


class LineHandler(logging.Handler):
    """Writes at the end of the event loop's turn; at once outside of it, for warnings and worse, and when there is much.

    So a killed process loses the informational lines of one turn at most.
    """

    def __init__(self, out: BinaryIO) -> None:
        super().__init__()
        self._out = out
        self._lines = JsonLines()
        self._held: list[bytes] = []
        self._held_bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._lines.line(record)
        except (TypeError, ValueError):
            # logging's own boundary: a line that cannot be made must not end a request.
            self.handleError(record)
            return
        self._held.append(line)
        self._held_bytes += len(line)
        loop = _running_loop() if record.levelno < logging.WARNING else None
        if loop is None or self._held_bytes >= MANY_BYTES:
            self.flush()
        elif len(self._held) == 1:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        self.acquire()
        try:
            if self._held:
                held, self._held, self._held_bytes = self._held, [], 0
                held.append(b"")
                self._out.write(b"\n".join(held))
                self._out.flush()
        except (OSError, ValueError):
            # Nobody reads standard error any more; serving goes on.
            return
        finally:
            self.release()


def _told(error: BaseException, seen: set[int]) -> Iterator[str]:
    """What came before it first, as Python prints it."""
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _told(before, seen)
        yield "then:"
    yield "".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        if id(inner) not in seen:
            yield "of it:"
            yield from _told(inner, seen)


def log_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """In place of the event loop's own, which prints the objects that an error went through."""
    error = context.get("exception")
    logger.error("an error reached the event loop" if error else context["message"], exc_info=error)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
