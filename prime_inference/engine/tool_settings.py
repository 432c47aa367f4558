"""Worker settings for tool calls: who parses what GLM writes, and who builds the grammar. Pure.

What `up` and the chart deploy is `Parsing.GATEWAY`: neither Dynamo nor vLLM is given a parser, so that the text comes back raw,
and the gateway sends the grammar with each request (ADR 0401). Where the prompt leaves the thinking open, that grammar begins
with the thinking (ADR 0408). vLLM's reasoning parser must then be absent: it would hold the grammar back until `</think>`, or
until a `<tool_call>` within the thinking, and the grammar would meet a text that it does not begin with.
"""

import json
from enum import StrEnum

TOOL_PARSER = "glm47"
REASONING_PARSER = "glm45"
"""One name for both of Dynamo's and vLLM's parsers of GLM 4.5 to 5.x thinking."""
STRUCTURAL_TAG = {"scope": "always", "schema": "auto"}
"""Dynamo 1.6's own default, said aloud: a tag for every request with tools, strict or not."""


class Parsing(StrEnum):
    NONE = "none"
    """Nothing is known of the model's tool format: no parser anywhere."""
    GATEWAY = "gateway"
    """GLM's form, read and enforced by the gateway. What `up` deploys."""
    FRONTEND = "frontend"
    """GLM's form, read by Dynamo's parsers under Dynamo's tags, for who calls a frontend without our gateway. It loses
    what docs/toolcalls.md says it loses."""


def tool_arguments(parsing: Parsing, *, thinks: bool) -> list[str]:
    """Of `dynamo.vllm`. `thinks`: the model has `<think>` and `</think>` as tokens, without which vLLM's reasoning parser
    does not start."""
    if parsing is Parsing.NONE:
        return []
    if parsing is Parsing.GATEWAY:
        return ["--dyn-structural-tag", "false"]
    return [
        *(("--reasoning-parser", REASONING_PARSER) if thinks else ()),
        *("--dyn-tool-call-parser", TOOL_PARSER),
        *(("--dyn-reasoning-parser", REASONING_PARSER) if thinks else ()),
        *("--dyn-structural-tag", json.dumps(STRUCTURAL_TAG)),
    ]
