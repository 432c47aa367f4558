"""Liveness and readiness of this replica. Neither asks the fleet: a dead deployment must not take every replica of the
gateway out of its load balancer, which would turn 503s with a reason into refused connections."""

from fastapi import APIRouter, Request, Response

from gateway.state import state_of

router = APIRouter()


@router.get("/healthz", summary="The process serves")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz", summary="The process takes requests: 503 while it drains")
async def readyz(request: Request) -> Response:
    if state_of(request).draining.is_set():
        return Response('{"status":"draining"}', status_code=503, media_type="application/json")
    return Response('{"status":"ready"}', media_type="application/json")
