"""What a gateway process holds for tool calls, and the one call that every generation request makes.

A compile process (0.5 GB, 10 to 15 s to its first answer) belongs to each tokenizer of the fleet file. It is started with
the gateway and not waited for: readiness does not depend on it, and the first request with tools waits where it must.
"""

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.api.request import Endpoint, GenerationRequest
from gateway.dialects import DIALECTS, translated
from gateway.dialects.chat import as_chat
from gateway.errors import InvalidRequest, Unavailable
from gateway.fleet.registry import Fleet, Model
from gateway.toolcalls.books import Books
from gateway.toolcalls.forward import (
    asks_for_a_format,
    format_tag,
    forwarded,
    thinking_open,
    with_format,
)
from gateway.toolcalls.history import for_template
from gateway.toolcalls.metrics import ToolMetrics
from gateway.toolcalls.reading import SchemaReader
from gateway.toolcalls.served import Served, ServedInDialect, ServedPassing, ServedWithTools
from prime_inference.toolcalls.choice import Choice, Mode, read_choice
from prime_inference.toolcalls.compiler import Rejected, TagCompiler
from prime_inference.toolcalls.declared import Declared, OnUnsupported
from prime_inference.toolcalls.door import admit
from prime_inference.toolcalls.errors import BadToolChoice, CompilerGone, ToolError
from prime_inference.toolcalls.findings import Effect
from prime_inference.toolcalls.serving import ToolFormat
from prime_inference.toolcalls.tags import Thinking, after_thinking, key_of

logger = logging.getLogger("gateway")

COMPILER_RETRY_AFTER_S = 5.0
NO_TOOLS = Declared({})
NO_CHOICE = Choice(Mode.NONE, ())


class ToolDesk:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = ToolMetrics(registry)
        self._compilers: dict[Path, TagCompiler] = {}
        self._starting: list[asyncio.Task[None]] = []
        self._reader = SchemaReader()

    def follow(self, fleet: Fleet) -> None:
        """Start a compiler for every tokenizer that has none. One whose model has left stays: requests may still use
        it."""
        for path in _tokenizers(fleet) - set(self._compilers):
            compiler = self._compilers[path] = TagCompiler(str(path), with_grammar=True)
            self._starting.append(asyncio.create_task(_start(compiler), name=f"grammar-compiler {path}"))

    async def close(self) -> None:
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for compiler in self._compilers.values():
            await compiler.close()
        self._reader.close()

    async def prepare(self, model: Model, request: GenerationRequest) -> Served:
        """The request as it leaves, and what becomes of its answers. Raises InvalidRequest for tools that cannot be
        served as they are, Unavailable where no grammar can be had."""
        if model.tools.format is ToolFormat.ENGINE or request.endpoint not in DIALECTS:
            return await self._prepare(model, request)
        # The frontend leaves the text raw, and chat completions are where it is read.
        asked, new_writer = translated(request)
        if asked.left_out:
            self._metrics.not_held.labels(model.name, "left_out").inc(asked.left_out)
        chat = await self._prepare(model, as_chat(request, asked))
        return ServedInDialect(chat.request, chat, new_writer)

    async def _prepare(self, model: Model, request: GenerationRequest) -> Served:
        fields, tools = request.fields, model.tools
        if tools.format is ToolFormat.ENGINE:
            judged = request.endpoint is not Endpoint.COMPLETIONS and fields.get("tools")
            return await self._judged_only(model, request) if judged else Served(request)
        if request.endpoint is not Endpoint.CHAT:
            return Served(request)
        fields = {**fields, "messages": for_template(fields["messages"])}
        request = replace(request, fields=fields)
        thinking = thinking_open(fields, tools.thinking)
        started = time.perf_counter()
        try:
            if not fields.get("tools"):
                read_choice(fields.get("tool_choice"), {})  # a call that must be made, and that no tool could be
                return await self._without_tools(model, request, thinking)
            served = await self._enforced(model, request, thinking)
        except ToolError as error:
            self._metrics.refused.labels(model.name).inc()
            param, code = _blamed(error)
            raise InvalidRequest(error.message, param=param, code=code) from error
        except CompilerGone as error:
            logger.error("no grammar compiler", extra={"model": model.name, "reason": str(error)})
            raise Unavailable(
                "Tool calls cannot be enforced at the moment; try again shortly.",
                code="tool_enforcement_unavailable",
                retry_after_s=COMPILER_RETRY_AFTER_S,
            ) from error
        self._metrics.door.labels(model.name).observe(time.perf_counter() - started)
        return served

    async def _without_tools(self, model: Model, request: GenerationRequest, thinking: bool) -> Served:
        """There may be thinking to be told from the answer, and a format to be held to behind it."""
        if not thinking:
            return Served(request)
        asked = asks_for_a_format(request.fields)
        if asked is not None:
            request = replace(request, fields=await self._formatted(model, request.fields, asked))
        return ServedWithTools(request, self._metrics, model.name, NO_TOOLS, NO_CHOICE, True, thinking)

    async def _formatted(self, model: Model, fields: dict[str, Any], asked: str) -> dict[str, Any]:
        content = _content(fields, asked)
        if content is None:
            return fields  # the frontend's to refuse
        return with_format(fields, await self._compiled(model, asked, after_thinking(content)))

    async def _compiled(self, model: Model, asked: str, content: dict[str, Any]) -> str:
        tag = {"type": "structural_tag", "format": content}
        answer = await self._compiler(model).compile(key_of(tag), tag)
        if isinstance(answer, Rejected):
            raise BadFormat(asked, f"the grammar does not compile: {answer.reason}")
        assert answer.grammar is not None
        return answer.grammar

    def _compiler(self, model: Model) -> TagCompiler:
        assert model.tools.tokenizer is not None
        return self._compilers[model.tools.tokenizer]

    async def _enforced(self, model: Model, request: GenerationRequest, thinking: bool) -> Served:
        fields, on_unsupported = request.fields, model.tools.unsupported
        declared = await self._reader.declare(fields["tools"], on_unsupported)
        choice = read_choice(fields.get("tool_choice"), declared.tools)
        grammar = None
        asked = asks_for_a_format(fields)
        if asked is None or choice.mode is not Mode.NONE:
            parallel = fields.get("parallel_tool_calls") is not False
            begins = Thinking.IN_TAG if thinking else Thinking.BY_ENGINE
            text = None if asked is None or choice.must_call else await self._text_form(model, fields, asked)
            admitted = await admit(self._compiler(model), declared, choice, parallel, begins, on_unsupported, text)
            declared, grammar = admitted.declared, admitted.grammar
            self._count_what_is_not_held(model, declared)
        elif thinking:
            fields = await self._formatted(model, fields, asked)
        leaving = replace(request, fields=forwarded(fields, choice, grammar))
        return ServedWithTools(leaving, self._metrics, model.name, declared, choice, True, thinking)

    async def _text_form(self, model: Model, fields: dict[str, Any], asked: str) -> dict[str, Any]:
        """The form that an answer has when it calls nothing, compiled once by itself: so that it is blamed, not a tool."""
        content = _content(fields, asked)
        if content is None:
            raise BadFormat(asked, "cannot be held together with tools; leave one out, or set tool_choice to 'none'")
        await self._compiled(model, asked, content)
        return content

    async def _judged_only(self, model: Model, request: GenerationRequest) -> Served:
        """The frontend's business, refusals included; its calls are judged as far as the tools can be read."""
        try:
            fields = translated(request)[0].fields if request.endpoint in DIALECTS else request.fields
            declared = await self._reader.declare(fields.get("tools"), OnUnsupported.NAMES_ONLY)
            choice = read_choice(fields.get("tool_choice"), declared.tools)
        except (ToolError, InvalidRequest):
            return Served(request)
        if request.endpoint is Endpoint.CHAT:
            return ServedWithTools(request, self._metrics, model.name, declared, choice, False, False)
        return ServedPassing(request, lambda: Books(self._metrics, model.name, declared, choice))

    def _count_what_is_not_held(self, model: Model, declared: Declared) -> None:
        looser = sum(
            any(finding.effect is Effect.LOOSER for finding in tool.findings) for tool in declared.tools.values()
        )
        for how, number in (("names_only", len(declared.degraded)), ("looser", looser)):
            if number:
                self._metrics.not_held.labels(model.name, how).inc(number)


class BadFormat(ToolError):
    """A format that no engine could hold an answer to."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param}: {reason}")
        self.param = param


def _content(fields: dict[str, Any], asked: str) -> dict[str, Any] | None:
    """Raises BadFormat."""
    try:
        return format_tag(fields)
    except (TypeError, ValueError) as error:
        raise BadFormat(asked, str(error)) from error


def _blamed(error: ToolError) -> tuple[str, str]:
    """The parameter and the code of the 400."""
    if isinstance(error, BadFormat):
        return error.param, "invalid_value"
    return ("tool_choice", "invalid_value") if isinstance(error, BadToolChoice) else ("tools", "unsupported_tools")


def _tokenizers(fleet: Fleet) -> set[Path]:
    served = (model.tools for model in fleet.models.values() if model.tools.format is ToolFormat.GLM)
    return {tools.tokenizer for tools in served if tools.tokenizer is not None}


async def _start(compiler: TagCompiler) -> None:
    try:
        await compiler.start()
    except CompilerGone as error:
        # Asked for again by the first request with tools.
        logger.error("the grammar compiler did not start", extra={"reason": str(error)})
