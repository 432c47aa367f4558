"""Headers that leave for the engines: an allow-list of ours, nothing the client sent is passed through."""


def upstream_headers(*, request_id: str, session: str, tenant_salt: str, stream: bool) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "accept": "text/event-stream" if stream else "application/json",
        "x-request-id": request_id,
        "x-dynamo-session-id": session,
        "x-tenant-id": tenant_salt,
    }
