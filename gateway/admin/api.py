"""The admin API, on the internal listener, for keys with the scope `admin`: one thing to read, one to act by."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError

from gateway.accounts.keys import Scope
from gateway.admin.actions import ACTION
from gateway.admin.desk import AdminDesk
from gateway.api.body import read_body
from gateway.errors import InvalidRequest
from gateway.state import state_of

router = APIRouter(prefix="/admin/v1")

MAX_ACTION_BYTES = 16 * 1024


def desk_of(request: Request) -> AdminDesk:
    desk: AdminDesk = request.app.state.admin
    return desk


@router.get("/overview", summary="The fleet, its breakers, leases, queues and times as this replica sees them")
async def overview(request: Request) -> dict[str, Any]:
    state_of(request).caller(request, Scope.ADMIN)
    return await desk_of(request).overview()


@router.post("/actions", summary="Drain, weigh, probe")
async def act(request: Request) -> dict[str, Any]:
    caller = state_of(request).caller(request, Scope.ADMIN)
    try:
        action = ACTION.validate_json(await read_body(request, MAX_ACTION_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidRequest(f"{where}: {first['msg']}", param=where, code="invalid_value") from error
    return await desk_of(request).act(action, caller, request.scope["state"]["request_id"])
