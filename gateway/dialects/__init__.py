"""OpenAI's Responses and Anthropic's Messages, spoken over chat completions.

For models whose text this gateway reads itself (`tools.format: glm`): their thinking and their tool calls are enforced, parsed
and judged on one path, that of chat completions, and these two are translations of it.

    chat                what both translations build: a chat request's turns
    responses_request   a Responses request as a chat request
    responses_answer    chat chunks as Responses events, and the response object
    messages_request    a Messages request as a chat request
    messages_answer     chat chunks as Messages events, and the message object
    editor              the stream editor that turns one into the other
    writer              what an answer's writer must do, and the whole answer made by the same writer

All of it is pure. What is not carried over is listed in docs/api.md.
"""

from collections.abc import Callable
from functools import partial

from gateway.api.request import Endpoint, GenerationRequest
from gateway.dialects.chat import Asked
from gateway.dialects.messages_answer import MessagesWriter
from gateway.dialects.messages_request import asked_in_messages
from gateway.dialects.responses_answer import ResponsesWriter
from gateway.dialects.responses_request import asked_in_responses
from gateway.dialects.writer import Writer

DIALECTS = (Endpoint.RESPONSES, Endpoint.MESSAGES)


def translated(request: GenerationRequest) -> tuple[Asked, Callable[[], Writer]]:
    """The request as a chat request, and what makes a writer for one answer to it. Raises InvalidRequest."""
    if request.endpoint is Endpoint.MESSAGES:
        return asked_in_messages(request.fields), partial(MessagesWriter, request.model)
    asked, names = asked_in_responses(request.fields)
    return asked, partial(ResponsesWriter, request.fields, names)
