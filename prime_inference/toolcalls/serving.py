"""How a model's tool calls are served, in words that the worker's settings and the gateway's fleet file share.

One owner of parsing (ADR 0401): where the gateway reads GLM's text itself, the worker must name no parser to Dynamo, and
where a frontend parses, the gateway must leave the text alone. Both sides take that from the same word.
"""

from enum import StrEnum

from prime_inference.toolcalls.glm import KEY
from prime_inference.toolcalls.tags import THINK


class ToolFormat(StrEnum):
    GLM = "glm"
    """The model writes GLM's text form, and the gateway enforces and reads it."""
    ENGINE = "engine"
    """The frontend builds the grammar and reads the calls, with whatever parser it was given; the gateway only judges."""


def format_of_template(chat_template: str) -> ToolFormat:
    """What a model writes is what its chat template shows it: GLM 4.5 to 5.x, and whoever was given their form."""
    return ToolFormat.GLM if KEY in chat_template else ToolFormat.ENGINE


def template_thinks(chat_template: str) -> bool:
    """Whether the model thinks between `<think>` and `</think>`. GLM's templates leave the thinking open by default."""
    return THINK in chat_template
