"""Reading a request's body with the cap enforced while it streams in."""

from starlette.requests import Request

from gateway.errors import InvalidRequest, PayloadTooLarge


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises PayloadTooLarge as soon as it is known, InvalidRequest if the client stops in the middle."""
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("The request ended before its body did.", code="incomplete_body")
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        if part:
            parts.append(part)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request body is larger than {max_bytes} bytes.")
