"""How a model's tool calls are served, in words that the worker's settings and the gateway's fleet file share.

One owner of parsing (ADR 0401): where the gateway reads GLM's text itself, the worker must name no parser to Dynamo, and
where a frontend parses, the gateway must leave the text alone. Both sides take that from the same word.
"""

from enum import StrEnum


class ToolFormat(StrEnum):
    GLM = "glm"
    """The model writes GLM's text form, and the gateway enforces and reads it."""
    ENGINE = "engine"
    """The frontend builds the grammar and reads the calls, with whatever parser it was given; the gateway only judges."""


def format_of_model_type(model_type: object) -> ToolFormat:
    """From `model_type` of a model's config.json: `glm4_moe`, `glm4_moe_lite`, `glm_moe_dsa`.

    GLM-4 before 4.5 (`glm`, `glm4`, `chatglm`) writes its calls in another form.
    """
    known = isinstance(model_type, str) and model_type.startswith(("glm4_moe", "glm_moe"))
    return ToolFormat.GLM if known else ToolFormat.ENGINE
