"""The gateway's place between client and Dynamo's frontend, as small as it can be: what issue 4 asks of the gateway.

Tools are read and their tag compiled at the door; the frontend gets the grammar with the request (`guided_grammar`,
since it takes no tag from a client) and `tool_choice` auto, so that it neither builds a grammar of its own nor parses;
the raw text that comes back goes through `raw`. All that it does to a request or a chunk is a function of the library.
"""

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from prime_inference.toolcalls.choice import Choice, Mode, read_choice
from prime_inference.toolcalls.compiler import TagCompiler
from prime_inference.toolcalls.declared import Declared, declare
from prime_inference.toolcalls.door import admit
from prime_inference.toolcalls.errors import ToolError
from prime_inference.toolcalls.raw import RawStream, raw_response


class Relay:
    def __init__(self, frontend: str, compiler: TagCompiler) -> None:
        self._frontend = frontend
        self._compiler = compiler
        self._count = itertools.count()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self.chat)
        return app

    def new_id(self) -> str:
        return f"call_{next(self._count):08}"

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        try:
            declared = declare(body.get("tools"))
            choice = read_choice(body.get("tool_choice"), declared.tools)
            if declared.tools:
                parallel = body.get("parallel_tool_calls") is not False
                admitted = await admit(self._compiler, declared, choice, parallel)
                declared = admitted.declared
                tools = [_without_strict(tool) for tool in body["tools"]]
                choice_there = "none" if choice.mode is Mode.NONE else "auto"
                body = {**body, "tools": tools, "guided_grammar": admitted.grammar, "tool_choice": choice_there}
        except ToolError as error:
            return web.json_response({"error": {"message": error.message, "type": "invalid_request_error"}}, status=400)
        url = f"{self._frontend}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as upstream:
            if upstream.status != 200:
                return web.Response(status=upstream.status, body=await upstream.read())
            if not body.get("stream"):
                response, _ = raw_response(await upstream.json(), declared, choice, self.new_id)
                return web.json_response(response)
            return await self._stream(request, upstream, declared, choice)

    async def _stream(
        self, request: web.Request, upstream: aiohttp.ClientResponse, declared: Declared, choice: Choice
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        raw = RawStream(declared, choice, self.new_id)
        async for event in _events(upstream):
            chunk = raw.feed(event) if "choices" in event else event
            if chunk is not None:
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _without_strict(tool: dict[str, Any]) -> dict[str, Any]:
    """Dynamo refuses a strict tool that leaves a key optional (400). The grammar is what is strict, and it is ours."""
    return {**tool, "function": {key: value for key, value in tool["function"].items() if key != "strict"}}


async def _events(upstream: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in upstream.content:
        data = line.decode().strip().removeprefix("data:").strip()
        if line.startswith(b"data:") and data != "[DONE]":
            yield json.loads(data)
