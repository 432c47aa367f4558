"""Whether an engine will take a request's tools, asked before the request leaves: what would fail there is refused
here.

The static part (`declare`) needs no compiler. This part asks the real one. When it rejects a tag, each tool is
tried alone, so that the error names the tool, then without its patterns (the known internal failures all come from
patterns).
"""

from dataclasses import dataclass, replace
from typing import Any

from prime_inference.toolcalls.choice import Choice, Mode
from prime_inference.toolcalls.compiler import Compiled, Rejected, TagCompiler
from prime_inference.toolcalls.declared import Declared, OnUnsupported, Tool
from prime_inference.toolcalls.errors import Unreadable, UnsupportedTool
from prime_inference.toolcalls.findings import Effect, Finding
from prime_inference.toolcalls.subschemas import every_subschema, map_subschemas
from prime_inference.toolcalls.tags import Thinking, build_tag, tag_key


@dataclass(frozen=True)
class Admitted:
    declared: Declared
    """As admitted: a tool whose grammar was rejected stands here without its patterns, or without a grammar."""
    tag: dict[str, Any]
    grammar: str | None
    """The tag as EBNF, when the compiler was asked for it."""


async def admit(
    compiler: TagCompiler,
    declared: Declared,
    choice: Choice,
    parallel: bool = True,
    thinking: Thinking = Thinking.BY_ENGINE,
    on_unsupported: OnUnsupported = OnUnsupported.REFUSE,
    text: dict[str, Any] | None = None,
) -> Admitted:
    """`text` is the form of an answer that calls nothing, and compiles by itself.

    Raises `UnsupportedTool` (400) for a tool that no engine would take, unless its name alone is to be enforced.
    """
    tag = build_tag(declared, choice, parallel, thinking, text)
    key = tag_key(declared, choice, parallel, thinking, text)
    answer = await compiler.compile(key, tag, _parts(declared, choice))
    if isinstance(answer, Compiled):
        return Admitted(declared, tag, answer.grammar)
    tools = dict(declared.tools)
    for name in choice.allowed:
        tools[name] = await _acceptable(compiler, tools[name], on_unsupported)
    declared = Declared(tools)
    tag = build_tag(declared, choice, parallel, thinking, text)
    key = tag_key(declared, choice, parallel, thinking, text)
    answer = await compiler.compile(key, tag, _parts(declared, choice))
    if isinstance(answer, Rejected):
        raise UnsupportedTool(", ".join(choice.allowed), "/", f"together they do not compile: {answer.reason}")
    return Admitted(declared, tag, answer.grammar)


async def _acceptable(compiler: TagCompiler, tool: Tool, on_unsupported: OnUnsupported) -> Tool:
    reason = ""
    for attempt in (tool, without_patterns(tool)):
        alone = Declared({tool.name: attempt})
        key, tag = tag_key(alone, _only(tool)), build_tag(alone, _only(tool))
        answer = await compiler.compile(key, tag, _parts(alone, _only(tool)))
        if isinstance(answer, Compiled):
            return attempt
        reason = reason or answer.reason
    if on_unsupported is OnUnsupported.REFUSE:
        raise UnsupportedTool(tool.name, "/", f"the grammar does not compile: {reason}")
    return replace(tool, grammar=None, unsupported=Unreadable("", reason))


def _parts(declared: Declared, choice: Choice) -> list[str]:
    return [declared.tools[name].digest for name in choice.allowed]


def _only(tool: Tool) -> Choice:
    return Choice(Mode.REQUIRED, (tool.name,))


def without_patterns(tool: Tool) -> Tool:
    if tool.grammar is None or not any("pattern" in part for part, _ in every_subschema(tool.grammar)):
        return tool
    finding = Finding(Effect.LOOSER, "", "pattern", "the grammar compiles only without the patterns")
    stripped = _strip(tool.grammar, "")
    assert isinstance(stripped, dict)
    return replace(tool, grammar=stripped, findings=(*tool.findings, finding))


def _strip(schema: Any, path: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "pattern"}
    return map_subschemas(kept, path, _strip)
