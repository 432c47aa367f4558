"""`POST /chat/completions` and `/completions`: one path for both."""

from fastapi import APIRouter, Request, Response

from gateway.api.body import read_body
from gateway.api.request import Endpoint, parse
from gateway.api.respond import ClientGone, EventStream, unless_gone
from gateway.errors import ApiError, Unavailable
from gateway.fleet.choice import Target, targets
from gateway.metering.settle import Outcome, Settlement, outcome_of_status
from gateway.relay.affinity import salt_of, session_of
from gateway.relay.attempts import Attempts
from gateway.relay.causes import Cause
from gateway.relay.headers import upstream_headers
from gateway.state import GatewayState, state_of
from gateway.toolcalls.served import Served

CLIENT_CLOSED_STATUS = 499
"""nginx's status for a client that left; nobody receives it, logs and metrics tell it from an answer."""

router = APIRouter()


@router.post("/chat/completions", summary="Chat completion, streaming or not")
async def chat_completions(request: Request) -> Response:
    return await generate(request, Endpoint.CHAT)


@router.post("/completions", summary="Text completion, streaming or not")
async def completions(request: Request) -> Response:
    return await generate(request, Endpoint.COMPLETIONS)


async def generate(request: Request, endpoint: Endpoint) -> Response:
    state = state_of(request)
    settlement = state.settlement(endpoint.value, request.scope["state"]["request_id"])
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
        raise Unavailable("This replica is shutting down; try again.", retry_after_s=1.0, should_retry=True)
    caller = state.caller(request)
    settlement.tenant, settlement.key_name = caller.tenant, caller.key_name
    parsed = parse(await read_body(request, state.settings.max_body_bytes), endpoint)
    model = state.model(parsed.model)
    settlement.model = model.name
    session = session_of(caller.tenant, parsed.fields, request.headers.get("x-session-id"), state.secret)
    settlement.session = session
    headers = upstream_headers(
        request_id=settlement.request_id,
        session=session,
        tenant_salt=salt_of(caller.tenant, state.secret),
        stream=parsed.stream,
    )
    served = await state.tools.prepare(model, parsed)
    attempts = Attempts(state.upstream, targets(model, session), endpoint.value, Reporter(state, settlement))
    if parsed.stream:
        return await _stream(state, request, served, attempts, headers, settlement)
    return await _unary(state, request, served, attempts, headers, settlement)


async def _stream(
    state: GatewayState,
    request: Request,
    served: Served,
    attempts: Attempts,
    headers: dict[str, str],
    settlement: Settlement,
) -> Response:
    opening = attempts.stream(
        headers,
        served.request.upstream_body(),
        new_editor=served.editor,
        max_event_bytes=state.settings.max_event_bytes,
        timeout_s=state.settings.first_event_timeout_seconds,
    )
    stream = await unless_gone(request.receive, opening)
    settlement.first_event()
    return EventStream(stream, settlement, state.settings.total_timeout_seconds, state.deadline_passed)


async def _unary(
    state: GatewayState,
    request: Request,
    served: Served,
    attempts: Attempts,
    headers: dict[str, str],
    settlement: Settlement,
) -> Response:
    reading = attempts.unary(
        headers,
        served.request.upstream_body(),
        timeout_s=state.settings.total_timeout_seconds,
    )
    answer = await unless_gone(request.receive, reading)
    settlement.first_event()
    settlement.usage, settlement.timing = answer.usage, answer.timing
    body = served.whole(answer.body)
    settlement.close(Outcome.OK)
    return Response(body, media_type="application/json")


class Reporter:
    """Counts attempts and remembers which deployment answered."""

    def __init__(self, state: GatewayState, settlement: Settlement) -> None:
        self._metrics = state.metrics
        self._settlement = settlement

    def __call__(self, target: Target, cause: Cause | None) -> None:
        self._settlement.attempts += 1
        self._settlement.deployment = target.deployment.name
        self._metrics.attempts.labels(target.deployment.name, "ok" if cause is None else cause.value).inc()
