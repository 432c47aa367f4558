"""Structured logs: one JSON object a line on standard error. No prompt, no answer and no key is ever logged.

An exception's own text may quote what it choked on, which may be any of these: what is logged of one is its type and the
code it came through.
"""

import asyncio
import logging
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from pythonjsonlogger.json import JsonFormatter

logger = logging.getLogger("gateway")

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Formatter(JsonFormatter):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(name)s %(message)s",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        )

    def formatException(self, ei: ExcInfo) -> str:
        return "\n".join(_told(ei[1], set())) if ei[1] is not None else ""


def _told(error: BaseException, seen: set[int]) -> Iterator[str]:
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


def configure_logging(level: str) -> None:
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(Formatter())
    root = logging.getLogger()
    root.handlers[:] = [stream]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and stop lines say what ours say
