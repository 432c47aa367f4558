"""The request id: the client's own if it is harmless, else a new one. It goes to the engines and comes back in
`x-request-id`, so one id finds a request in every log."""

import re
import secrets

_HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id_of(given: str | None) -> str:
    if given is not None and _HARMLESS.fullmatch(given):
        return given
    return f"req_{secrets.token_hex(16)}"
