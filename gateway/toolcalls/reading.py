"""Tools read without holding up the event loop: the loop has its turn between two schemas that were never read, and one that
is long is read in a thread, one at a time.

In a thread alone the loop would wait for the interpreter's lock at every turn, 5 ms each: longer than a usual schema takes.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prime_inference.toolcalls.declared import Declared, OnUnsupported, Tool, declaring, read_schema
from prime_inference.toolcalls.regexes import categories

LONGEST_AT_ONCE = 4096
"""Characters of a schema's JSON that are read within one turn of the loop: 1 to 6 ms at worst, 0.4 ms as a rule."""

UNICODE_PROPERTIES = ("\\\\p{", "\\\\P{")
"""As JSON has them. A pattern with one becomes a class of hundreds of ranges: 15 ms to compile."""


def takes_long(schema: str) -> bool:
    return len(schema) > LONGEST_AT_ONCE or any(property_ in schema for property_ in UNICODE_PROPERTIES)


def _read_and_check(schema: str) -> Tool | None:
    """With its validators, which are otherwise made on the loop when the first call is judged."""
    read = read_schema(schema)
    if read is not None:
        _ = read.checks.client, read.checks.counted
    return read


class SchemaReader:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="schemas")
        self._thread.submit(categories)  # or the first pattern with a Unicode property would wait for it on the loop

    async def declare(self, tools: Sequence[Any] | None, on_unsupported: OnUnsupported) -> Declared:
        """As `declared.declare`, errors included."""
        loop = asyncio.get_running_loop()
        steps = declaring(tools, on_unsupported)
        try:
            schema = next(steps)
            while True:
                if takes_long(schema):
                    read = await loop.run_in_executor(self._thread, _read_and_check, schema)
                else:
                    read = read_schema(schema)
                    await asyncio.sleep(0)
                schema = steps.send(read)
        except StopIteration as done:
            declared: Declared = done.value
            return declared

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
