"""How each endpoint's answers are read: the stream's editor and the whole body's reader."""

from collections.abc import Callable
from functools import partial

from gateway.api.request import Endpoint, GenerationRequest
from gateway.relay.stream import Editor, StreamEditor
from gateway.relay.typed_stream import MESSAGES, RESPONSES, TypedEditor
from gateway.relay.whole import Whole, chat_answer, messages_answer, responses_answer


def editor_for(request: GenerationRequest) -> Callable[[], Editor]:
    if request.endpoint is Endpoint.RESPONSES:
        return partial(TypedEditor, RESPONSES)
    if request.endpoint is Endpoint.MESSAGES:
        return partial(TypedEditor, MESSAGES)
    return partial(StreamEditor, forward_usage=request.wants_usage)


def reader_for(request: GenerationRequest) -> Callable[[bytes], Whole]:
    if request.endpoint is Endpoint.RESPONSES:
        return responses_answer
    return messages_answer if request.endpoint is Endpoint.MESSAGES else chat_answer
