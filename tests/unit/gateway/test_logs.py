import json
import logging
import sys

from gateway.telemetry.logs import JsonLines


def logged(error: BaseException) -> str:
    try:
        raise error
    except BaseException:  # noqa: BLE001 - the very thing that is logged
        record = logging.LogRecord("gateway", logging.ERROR, __file__, 1, "told", None, sys.exc_info())
    return str(json.loads(JsonLines().line(record))["exc_info"])


def test_an_errors_own_text_is_not_logged_but_its_type_and_its_way_are() -> None:
    text = logged(ValueError("secret"))
    assert "secret" not in text.replace('ValueError("secret")', "")
    assert text.endswith("ValueError")
    assert "in logged" in text


def test_what_came_before_and_what_is_within_is_told_the_same_way() -> None:
    inner = ExceptionGroup("secret one", [KeyError("secret two"), OSError("secret three")])
    outer = RuntimeError("secret four")
    outer.__cause__ = inner
    inner.__context__ = outer
    text = logged(outer)
    assert [each for each in ("one", "two", "three", "four") if f"secret {each}" in text] == []
    for name in ("ExceptionGroup", "KeyError", "OSError", "RuntimeError"):
        assert name in text
