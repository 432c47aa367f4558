"""The operator console: three files as they are. They hold no secret; everything they show comes from the admin API."""

from importlib.resources import files

from fastapi import APIRouter, Response

router = APIRouter()

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Nothing from elsewhere, nothing inline, no HTML out of strings."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def _served(name: str, media_type: str) -> Response:
    return Response(files("gateway.console").joinpath(name).read_bytes(), media_type=media_type, headers=HEADERS)


@router.get("/console", summary="The operator console")
async def page() -> Response:
    return _served("console.html", "text/html")


@router.get("/console/console.js")
async def script() -> Response:
    return _served("console.js", "text/javascript")


@router.get("/console/console.css")
async def style() -> Response:
    return _served("console.css", "text/css")
