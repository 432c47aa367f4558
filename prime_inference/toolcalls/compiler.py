"""Asks the compile process, remembers what it said, and replaces the process when it dies or hangs.

The event loop only awaits a pipe. An agent sends the same tools on every turn, so that after the first turn the
answer is a dict look-up.
"""

import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prime_inference.toolcalls.errors import CompilerGone

START_S = 180.0
"""For importing torch and reading the tokenizer: 3 to 10 s on an idle core, over a minute was seen at ten times the load. One
that is ended sooner would begin again with the next request, and never be there."""
COMPILE_S = 10.0
"""One tag. 128 tools of 12 parameters compile in 0.07 s; what takes this long would hold up the engine as well."""
REMEMBERED = 2048
"""Answers kept, the rejected ones too."""
LONGEST_LINE = 64 * 2**20
"""Bytes of one answer: the grammar text of a few hundred tools is under 2 MB."""


@dataclass(frozen=True)
class Compiled:
    """The engine will compile the tag."""

    grammar: str | None
    """The tag as EBNF, when it was asked for."""


@dataclass(frozen=True)
class Rejected:
    """The engine would fail on the tag."""

    reason: str


class TagCompiler:
    def __init__(self, tokenizer: str, with_grammar: bool = False) -> None:
        self._tokenizer = tokenizer
        self._with_grammar = with_grammar
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._answers: OrderedDict[str, Compiled | Rejected] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Compiled | Rejected]] = {}

    async def start(self) -> None:
        """Before the first request needs it. Raises `CompilerGone`."""
        async with self._turn:
            await self._running()

    async def compile(self, key: str, tag: dict[str, Any], parts: Sequence[str] = ()) -> Compiled | Rejected:
        """`key` is the tag's `tags.tag_key`, `parts` the digests of its tools. A tag that kills or outlasts the process is
        rejected.

        Raises `CompilerGone` when the process cannot be started.
        """
        known = self._answers.get(key)
        if known is not None:
            self._answers.move_to_end(key)
            return known
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = asyncio.create_task(self._ask_and_remember(key, tag, parts))
            asked.add_done_callback(lambda _: self._asked.pop(key, None))
        # A client that leaves must not leave its answer behind in the pipe, for the next request to take for its own.
        return await asyncio.shield(asked)

    async def _ask_and_remember(self, key: str, tag: dict[str, Any], parts: Sequence[str]) -> Compiled | Rejected:
        async with self._turn:
            answer = await self._ask({"tag": tag, "grammar": self._with_grammar, "parts": list(parts)})
        self._answers[key] = answer
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return answer

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _ask(self, request: dict[str, Any]) -> Compiled | Rejected:
        """A process may have died before, or of something else, so that only a tag that kills two is to blame."""
        for _ in range(2):
            process = await self._running()
            try:
                answer = await self._exchange(process, request)
            except TimeoutError:
                await self.close()
                return Rejected(f"the grammar took longer than {COMPILE_S:.0f} s to compile")
            except (ConnectionError, CompilerGone):
                await self.close()
                continue
            return Compiled(answer["grammar"]) if answer["ok"] else Rejected(str(answer["error"]))
        return Rejected("the grammar compiler died of it")

    async def _exchange(self, process: asyncio.subprocess.Process, request: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
        return await self._line(process, COMPILE_S)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        module = "prime_inference.toolcalls.compile_process"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, self._tokenizer),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
        )
        try:
            await self._line(self._process, START_S)
        except (TimeoutError, CompilerGone) as error:
            await self.close()
            raise CompilerGone(f"the grammar compiler did not start: {error or 'no answer in time'}") from error
        return self._process

    @staticmethod
    async def _line(process: asyncio.subprocess.Process, within_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), within_s)
        if not line:
            raise CompilerGone("the grammar compiler ended")
        answer: dict[str, Any] = json.loads(line)
        return answer
