"""`GET /models` and `GET /models/{model}`, as the OpenAI SDK reads them."""

from typing import Any

from fastapi import APIRouter, Request

from gateway.fleet.registry import Model
from gateway.state import state_of

router = APIRouter()


@router.get("/models", summary="The models this key may use")
async def list_models(request: Request) -> dict[str, Any]:
    state = state_of(request)
    caller = state.caller(request)
    models = [model for model in state.snapshot.fleet.models.values() if caller.may_use(model.name)]
    return {"object": "list", "data": [_shown(model) for model in models]}


@router.get("/models/{name:path}", summary="One model")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    state = state_of(request)
    return _shown(state.model(name, state.caller(request)))


def _shown(model: Model) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": model.owned_by}
