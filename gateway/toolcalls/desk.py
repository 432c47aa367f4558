"""What a gateway process holds for tool calls, and the one call that every generation request makes.

A compile process (0.5 GB, 10 to 15 s to its first answer) belongs to each tokenizer of the fleet file. It is started with
the gateway and not waited for: readiness does not depend on it, and the first request with tools waits where it must.
"""

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from gateway.api.request import Endpoint, GenerationRequest
from gateway.dialects import DIALECTS, translated
from gateway.dialects.chat import as_chat
from gateway.errors import InvalidRequest, Unavailable
from gateway.fleet.registry import Fleet, Model
from gateway.toolcalls.forward import check_format, forwarded, thinking_open
from gateway.toolcalls.metrics import ToolMetrics
from gateway.toolcalls.served import Served, ServedInDialect, ServedWithTools
from prime_inference.toolcalls.choice import Choice, Mode, read_choice
from prime_inference.toolcalls.compiler import TagCompiler
from prime_inference.toolcalls.declared import Declared, OnUnsupported, declare
from prime_inference.toolcalls.door import admit
from prime_inference.toolcalls.errors import BadToolChoice, CompilerGone, ToolError
from prime_inference.toolcalls.findings import Effect
from prime_inference.toolcalls.serving import ToolFormat

logger = logging.getLogger("gateway")

COMPILER_RETRY_AFTER_S = 5.0
NO_TOOLS = Declared({})
NO_CHOICE = Choice(Mode.NONE, ())


class ToolDesk:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = ToolMetrics(registry)
        self._compilers: dict[Path, TagCompiler] = {}
        self._starting: list[asyncio.Task[None]] = []

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
            judged = request.endpoint is Endpoint.CHAT and fields.get("tools")
            return self._judged_only(model, request) if judged else Served(request)
        if request.endpoint is not Endpoint.CHAT:
            return Served(request)
        thinking = thinking_open(fields, tools.thinking)
        if not fields.get("tools"):
            bare = ServedWithTools(request, self._metrics, model.name, NO_TOOLS, NO_CHOICE, True, thinking)
            return bare if thinking else Served(request)
        started = time.perf_counter()
        try:
            served = await self._enforced(model, request, thinking)
        except ToolError as error:
            self._metrics.refused.labels(model.name).inc()
            choice_is_wrong = isinstance(error, BadToolChoice)
            raise InvalidRequest(
                error.message,
                param="tool_choice" if choice_is_wrong else "tools",
                code="invalid_value" if choice_is_wrong else "unsupported_tools",
            ) from error
        except CompilerGone as error:
            logger.error("no grammar compiler", extra={"model": model.name, "reason": str(error)})
            raise Unavailable(
                "Tool calls cannot be enforced at the moment; try again shortly.",
                code="tool_enforcement_unavailable",
                retry_after_s=COMPILER_RETRY_AFTER_S,
            ) from error
        self._metrics.door.labels(model.name).observe(time.perf_counter() - started)
        return served

    async def _enforced(self, model: Model, request: GenerationRequest, thinking: bool) -> Served:
        fields, on_unsupported = request.fields, model.tools.unsupported
        assert model.tools.tokenizer is not None
        declared = declare(fields["tools"], on_unsupported)
        choice = read_choice(fields.get("tool_choice"), declared.tools)
        grammar = None
        if check_format(fields, choice) is None:
            parallel = fields.get("parallel_tool_calls") is not False
            compiler = self._compilers[model.tools.tokenizer]
            admitted = await admit(compiler, declared, choice, parallel, on_unsupported=on_unsupported)
            declared, grammar = admitted.declared, admitted.grammar
            self._count_what_is_not_held(model, declared)
        leaving = replace(request, fields=forwarded(fields, choice, grammar))
        return ServedWithTools(leaving, self._metrics, model.name, declared, choice, True, thinking)

    def _judged_only(self, model: Model, request: GenerationRequest) -> Served:
        """The frontend's business, refusals included; its calls are judged as far as the tools can be read."""
        try:
            declared = declare(request.fields["tools"], OnUnsupported.NAMES_ONLY)
            choice = read_choice(request.fields.get("tool_choice"), declared.tools)
        except ToolError:
            return Served(request)
        return ServedWithTools(request, self._metrics, model.name, declared, choice, False, False)

    def _count_what_is_not_held(self, model: Model, declared: Declared) -> None:
        looser = sum(
            any(finding.effect is Effect.LOOSER for finding in tool.findings) for tool in declared.tools.values()
        )
        for how, number in (("names_only", len(declared.degraded)), ("looser", looser)):
            if number:
                self._metrics.not_held.labels(model.name, how).inc(number)


def _tokenizers(fleet: Fleet) -> set[Path]:
    served = (model.tools for model in fleet.models.values() if model.tools.format is ToolFormat.GLM)
    return {tools.tokenizer for tools in served if tools.tokenizer is not None}


async def _start(compiler: TagCompiler) -> None:
    try:
        await compiler.start()
    except CompilerGone as error:
        # Asked for again by the first request with tools.
        logger.error("the grammar compiler did not start", extra={"reason": str(error)})
