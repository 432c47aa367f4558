"""Readiness by asking. Every answer but the expected one means "not yet"; errors are part of starting."""

import asyncio
import http.client
import urllib.error
import urllib.request

from prime_inference.local.spec import HttpOk, Probe, TcpPing

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Everything asked is on this machine: a proxy of the environment must not be asked for it."""

PROBE_TIMEOUT_S = 2.0
"""One question; a starting process on a busy machine may take a second to answer."""


async def is_ready(probe: Probe) -> bool:
    match probe:
        case TcpPing(port):
            return await _pings(port)
        case HttpOk(url):
            status, _ = await get(url)
            return status == 200


async def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body; status 0 when nobody answers."""
    return await asyncio.to_thread(_get, urllib.request.Request(url, headers=headers or {}), PROBE_TIMEOUT_S)


async def post(url: str, body: bytes, headers: dict[str, str], timeout_s: float) -> tuple[int, bytes]:
    """Status and body; status 0 when nobody answers in time."""
    return await asyncio.to_thread(_get, urllib.request.Request(url, body, headers), timeout_s)


def _get(request: urllib.request.Request, timeout_s: float) -> tuple[int, bytes]:
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, http.client.HTTPException):
        return 0, b""


async def _pings(port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"PING\r\n")
            answer = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return answer == b"+PONG\r\n"
    except (OSError, TimeoutError):
        return False
