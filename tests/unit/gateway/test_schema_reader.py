"""Reading schemas that were never seen leaves the event loop its turns."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.toolcalls import reading
from gateway.toolcalls.reading import LONGEST_AT_ONCE, SchemaReader
from prime_inference.toolcalls.declared import OnUnsupported, declare, forget, read_schema
from prime_inference.toolcalls.errors import ToolError, UnsupportedTool
from prime_inference.toolcalls.suite.cases import function
from prime_inference.toolcalls.suite.generate import generate
from tests.support.turns import turns_counted

TOOLS = [function(f"tool_{n}", sample.parameters) for n, sample in enumerate(generate(20, 77))]


@pytest_asyncio.fixture
async def reader() -> AsyncIterator[SchemaReader]:
    forget()
    made = SchemaReader()
    yield made
    made.close()


def long_schema() -> dict[str, Any]:
    properties = {f"key_{n}": {"type": "string", "description": "x" * 40} for n in range(LONGEST_AT_ONCE // 50)}
    return {"type": "object", "properties": properties}


async def test_the_loop_has_its_turn_between_two_schemas_that_were_never_read(reader: SchemaReader) -> None:
    async with turns_counted() as turns:
        declared = await reader.declare(TOOLS, OnUnsupported.REFUSE)
        assert turns.count >= len(TOOLS)
        turns.count = 0
        assert (await reader.declare(TOOLS, OnUnsupported.REFUSE)).tools == declared.tools
        assert turns.count == 0  # what is known is not worth a turn


async def test_what_comes_of_it_is_what_comes_of_reading_at_once(reader: SchemaReader) -> None:
    declared = await reader.declare(TOOLS, OnUnsupported.REFUSE)
    forget()
    assert [(tool.name, tool.enforced, tool.findings) for tool in declared.tools.values()] == [
        (tool.name, tool.enforced, tool.findings) for tool in declare(TOOLS).tools.values()
    ]


async def test_a_long_schema_is_read_beside_the_loop_and_its_checks_are_made_there(
    reader: SchemaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noted(schema: str) -> Any:
        threads.append(threading.get_ident())
        return read_schema(schema)

    monkeypatch.setattr(reading, "read_schema", noted)
    letters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^\\p{L}+$"}}}
    tools = [function("long", long_schema()), function("letters", letters), function("short", {"type": "object"})]
    declared = await reader.declare(tools, OnUnsupported.REFUSE)
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [False, False, True]
    assert {"client", "counted"} <= set(vars(declared.tools["long"].checks))


async def test_errors_are_those_of_the_door(reader: SchemaReader) -> None:
    lost = function("lost", {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}})
    with pytest.raises(UnsupportedTool, match="lost"):
        await reader.declare([lost], OnUnsupported.REFUSE)
    assert (await reader.declare([lost], OnUnsupported.NAMES_ONLY)).degraded
    with pytest.raises(ToolError, match="must be a list"):
        await reader.declare("tools", OnUnsupported.REFUSE)
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(ToolError, match=r"tools\[0\].*too deeply|too large"):
        await reader.declare([function("deep", deep)], OnUnsupported.REFUSE)
