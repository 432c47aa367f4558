"""Tool calls that an agent can rely on: read at the door, enforced by a grammar, parsed by position, judged at the end.

What a gateway calls, all pure functions of plain values (`TagCompiler` and `admit` alone talk to a process):

    declared = declare(body.get("tools"))                  # 400s name tool and place
    choice = read_choice(body.get("tool_choice"), declared.tools)
    admitted = await admit(compiler, declared, choice, parallel)   # tag and grammar that the engine will compile
    raw = RawStream(admitted.declared, choice, new_id, thinking)   # only where the upstream leaves the text raw
    judge = StreamJudge(admitted.declared, choice)
    for chunk in chunks: sent = raw.feed(chunk); judge.feed(sent)
    summary = judge.finish(lost_calls)                     # outcome, verdicts, faults: labels of the metrics
"""

from prime_inference.toolcalls.choice import Choice, Mode, read_choice
from prime_inference.toolcalls.compiler import Compiled, Rejected, TagCompiler
from prime_inference.toolcalls.declared import Declared, OnUnsupported, Tool, declare
from prime_inference.toolcalls.door import Admitted, admit
from prime_inference.toolcalls.errors import BadToolChoice, CompilerGone, ToolError, UnsupportedTool
from prime_inference.toolcalls.raw import RawStream, raw_response
from prime_inference.toolcalls.stream import Fault, Outcome, StreamJudge, Summary
from prime_inference.toolcalls.tags import Thinking, build_tag, tag_key
from prime_inference.toolcalls.verdict import Judgement, Verdict, judge

__all__ = [
    "Admitted",
    "BadToolChoice",
    "Choice",
    "Compiled",
    "CompilerGone",
    "Declared",
    "Fault",
    "Judgement",
    "Mode",
    "OnUnsupported",
    "Outcome",
    "RawStream",
    "Rejected",
    "StreamJudge",
    "Summary",
    "TagCompiler",
    "Thinking",
    "Tool",
    "ToolError",
    "UnsupportedTool",
    "Verdict",
    "admit",
    "build_tag",
    "declare",
    "judge",
    "raw_response",
    "read_choice",
    "tag_key",
]
