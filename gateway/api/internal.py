"""The internal listener's own endpoint: metrics."""

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.state import state_of
from gateway.telemetry.exposition import exposition

router = APIRouter()


@router.get("/metrics", summary="Prometheus metrics of this replica")
async def metrics(request: Request) -> Response:
    return Response(await exposition(state_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)
