"""The generation endpoints: one path for all of them."""

from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.body import read_body
from gateway.api.exchange import Exchange
from gateway.api.presence import ClientGone, Presence
from gateway.api.request import Endpoint, parse
from gateway.api.respond import CLIENT_CLOSED_STATUS, EventStream, JsonAnswer, unary
from gateway.api.shapes import reader_for
from gateway.api.terms import Terms, terms_of
from gateway.errors import ApiError, UpstreamFailed
from gateway.fleet.choice import Target, targets
from gateway.guard.gate import Applicant
from gateway.guard.refusals import draining
from gateway.metering.settle import Outcome, Settlement, outcome_of_status
from gateway.ratelimit import charges_for
from gateway.relay.affinity import salt_of, session_of
from gateway.relay.attempts import Attempts
from gateway.relay.causes import Cause
from gateway.relay.headers import upstream_headers
from gateway.state import GatewayState, state_of
from gateway.toolcalls.served import Served

router = APIRouter()


@router.post("/chat/completions", summary="Chat completion, streaming or not")
async def chat_completions(request: Request) -> Response:
    return await generate(request, Endpoint.CHAT)


@router.post("/completions", summary="Text completion, streaming or not")
async def completions(request: Request) -> Response:
    return await generate(request, Endpoint.COMPLETIONS)


@router.post("/responses", summary="OpenAI's Responses, streaming or not, without stored state")
async def responses(request: Request) -> Response:
    return await generate(request, Endpoint.RESPONSES)


@router.post("/messages", summary="Anthropic's Messages, streaming or not")
async def messages(request: Request) -> Response:
    return await generate(request, Endpoint.MESSAGES)


ANSWERS = {
    Endpoint.CHAT: chat_completions,
    Endpoint.COMPLETIONS: completions,
    Endpoint.RESPONSES: responses,
    Endpoint.MESSAGES: messages,
}
"""By endpoint, for `direct.py`."""


async def generate(request: Request, endpoint: Endpoint) -> Response:
    state = state_of(request)
    settlement = state.settlement(endpoint.value, request.scope["state"]["request_id"])
    if state.tracing is not None:
        settlement.span = state.tracing.begin(endpoint.value, request.headers)
    try:
        return await _answer(state, request, endpoint, settlement)
    except ApiError as error:
        settlement.close(outcome_of_status(error.status))
        raise
    except ClientGone:
        settlement.close(Outcome.CLIENT_GONE)
        return Response(status_code=CLIENT_CLOSED_STATUS)
    except BaseException:
        settlement.close(Outcome.INTERNAL_ERROR)
        raise


async def _answer(state: GatewayState, request: Request, endpoint: Endpoint, settlement: Settlement) -> Response:
    if state.draining.is_set():
        raise draining()
    caller = state.caller(request)
    settlement.tenant, settlement.key_name = caller.tenant, caller.key_name
    raw = await read_body(request, state.settings.max_body_bytes)
    parsed = parse(raw, endpoint)
    snapshot = state.snapshot
    model = state.model(parsed.model, caller)
    settlement.model = model.name
    session = session_of(caller.tenant, parsed.fields, request.headers.get("x-session-id"), state.secret)
    settlement.session = session
    served = await state.tools.prepare(model, parsed)
    headers = upstream_headers(
        request_id=settlement.request_id,
        session=session,
        tenant_salt=salt_of(caller.tenant, state.secret),
        stream=parsed.stream,
    )
    if settlement.span is not None:
        settlement.span.asked(parsed.stream, parsed.most_answer_tokens)
        headers |= settlement.span.headers
    terms = terms_of(request.headers, caller.priority, parsed.stream, state.settings)
    prompt_tokens = state.sessions.prompt_tokens(session, len(raw))
    if model.context_tokens is not None:
        # Images are large and few tokens.
        prompt_tokens = min(prompt_tokens, model.context_tokens)
    applicant = Applicant(
        tenant=caller.tenant,
        kind=terms.kind,
        priority=terms.priority,
        charges=charges_for(
            caller.key_id,
            caller.requests_per_minute,
            caller.tokens_per_minute,
            prompt_tokens + parsed.answer_tokens,
        ),
        uncached_tokens=lambda deployment: state.sessions.uncached_tokens(session, deployment, prompt_tokens),
    )
    gate = state.gate(applicant, snapshot, model)
    exchange = Exchange(settlement, gate, state.sessions, session, len(raw))
    order = targets(model, session, state.guards.standing)
    path = served.request.endpoint.value
    attempts = Attempts(state.upstream, order, path, gate, terms.patience_s, Reporter(state, settlement))
    presence = Presence(request)
    try:
        if parsed.stream:
            return _stream(state, served, attempts, headers, exchange, presence, terms)
        return await _unary(state, served, attempts, headers, exchange, presence, terms)
    except BaseException as error:
        presence.close()
        # What a client that left has used, nobody knows: else leaving would be a way around the limit.
        gate.settle(0 if isinstance(error, Exception) and not isinstance(error, ClientGone) else None)
        if isinstance(error, ApiError):
            error.more_headers.update(gate.headers())
        raise


def _stream(
    state: GatewayState,
    served: Served,
    attempts: Attempts,
    headers: dict[str, str],
    exchange: Exchange,
    presence: Presence,
    terms: Terms,
) -> Response:
    open_stream = partial(
        attempts.stream,
        headers,
        served.request.upstream_body(),
        new_editor=served.editor,
        max_event_bytes=state.settings.max_event_bytes,
    )
    return EventStream(
        open_stream,
        exchange,
        presence,
        state.shutdown,
        served.editor,
        deadline=terms.deadline,
        keepalive_s=terms.keepalive_s,
    )


async def _unary(
    state: GatewayState,
    served: Served,
    attempts: Attempts,
    headers: dict[str, str],
    exchange: Exchange,
    presence: Presence,
    terms: Terms,
) -> Response:
    reading = attempts.unary(
        headers,
        served.request.upstream_body(),
        reader_for(served.request),
        deadline=terms.deadline,
        deadline_is_ours=terms.deadline_is_ours,
        most_tokens=served.request.most_answer_tokens,
    )
    answer = await unary(reading, presence, state.shutdown, terms.deadline)
    presence.close()
    exchange.settlement.whole_answer()
    whole = answer.whole
    try:
        body = served.whole(whole.body)
    except UpstreamFailed:
        exchange.ended(Outcome.UPSTREAM_ERROR, whole.usage, whole.timing, answer.target.deployment.name)
        raise
    exchange.ended(Outcome.OK, whole.usage, whole.timing, answer.target.deployment.name)
    return JsonAnswer(body, exchange.gate.headers())


class Reporter:
    """Counts attempts and remembers which deployment answered."""

    def __init__(self, state: GatewayState, settlement: Settlement) -> None:
        self._metrics = state.metrics
        self._settlement = settlement

    def __call__(self, target: Target, cause: Cause | None) -> None:
        self._settlement.attempts += 1
        self._settlement.deployment = target.deployment.name
        self._metrics.attempts.labels(target.deployment.name, "ok" if cause is None else cause.value).inc()
