"""Log lines as a collector reads them."""

import asyncio
import io
import json
import logging
import re
from enum import StrEnum
from typing import Any

import pytest

from gateway.telemetry.logs import MANY_BYTES, LineHandler


class Colour(StrEnum):
    RED = "red"


class Written(io.BytesIO):
    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, data: Any, /) -> int:
        self.writes += 1
        return super().write(data)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


def logger_to(out: io.BytesIO) -> logging.Logger:
    logger = logging.Logger("gateway.test", logging.DEBUG)
    logger.addHandler(LineHandler(out))
    return logger


def test_a_line_holds_what_the_call_gave() -> None:
    out = Written()
    logger_to(out).info("served %s", "é🦀", extra={"tokens": 3, "outcome": Colour.RED, "timing": {"a": None}})
    (line,) = out.lines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", line.pop("time"))
    assert line == {
        "level": "INFO", "logger": "gateway.test", "message": "served é🦀",
        "tokens": 3, "outcome": "red", "timing": {"a": None},
    }  # fmt: skip


def test_an_error_holds_its_traceback() -> None:
    out = Written()
    try:
        raise KeyError("lost")
    except KeyError:
        logger_to(out).exception("failed", extra={"object": object})
    (line,) = out.lines()
    assert line["exc_info"].endswith("KeyError"), "and not its text, which may quote a prompt"
    assert line["object"] == str(object)


def test_half_a_character_is_no_reason_to_lose_a_line() -> None:
    out = Written()
    logger_to(out).info("\ud800")
    assert out.lines()[0]["message"] == "\ud800"


async def test_the_lines_of_one_turn_leave_in_one_write() -> None:
    out = Written()
    logger = logger_to(out)
    for number in range(10):
        logger.info("line", extra={"number": number})
    assert out.writes == 0
    await asyncio.sleep(0)
    assert out.writes == 1
    assert [line["number"] for line in out.lines()] == list(range(10))


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
async def test_a_warning_leaves_at_once_and_what_was_held_before_it(level: int) -> None:
    out = Written()
    logger = logger_to(out)
    logger.info("first")
    logger.log(level, "second")
    assert [line["message"] for line in out.lines()] == ["first", "second"]


async def test_much_is_not_held() -> None:
    out = Written()
    logger_to(out).info("x" * MANY_BYTES)
    assert out.writes == 1


def test_a_closed_standard_error_does_not_stop_serving() -> None:
    out = Written()
    logger = logger_to(out)
    out.close()
    logger.warning("nobody reads this")
