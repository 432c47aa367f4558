"""One HTTP request to a Dynamo frontend: the only place that talks to the fleet."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import aiohttp

from gateway.relay.causes import AttemptFailed, Cause, cause_of_status, client_error

READ_BUFFER_BYTES = 64 * 1024
"""aiohttp pauses the socket at twice this: bounds what a slow client makes us hold for one stream."""

MAX_REFUSAL_BYTES = 64 * 1024
"""How much of an upstream's error body is read."""

KEEPALIVE_SECONDS = 30.0
"""Idle connections to a frontend are kept this long: shorter than Dynamo's own close, so we do not race with it."""


class UpstreamAnswer:
    """A 200 from a frontend, not read yet. `close` ends it at once: the frontend sees the disconnect and cancels."""

    def __init__(self, response: aiohttp.ClientResponse, idle_timeout_s: float) -> None:
        self._response = response
        self._idle_timeout_s = idle_timeout_s
        self._silence_s: float | None = None

    def begun(self) -> None:
        """From now on silence counts: the wait for the first event is bounded by whoever attempts it."""
        self._silence_s = self._idle_timeout_s

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises AttemptFailed(LOST) when the connection breaks or, once begun, stays silent."""
        content = self._response.content
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    data = await content.readany()
            except TimeoutError as error:
                raise AttemptFailed(Cause.LOST, f"no event for {self._idle_timeout_s:g} s") from error
            except (aiohttp.ClientError, ConnectionError) as error:
                raise AttemptFailed(Cause.LOST, f"the connection broke ({type(error).__name__})") from error
            if not data:
                return
            yield data

    def close(self) -> None:
        self._response.close()

    def release(self) -> None:
        """The body has been read to its end: the connection may serve another request."""
        self._response.release()


class Upstream:
    """The connection pool of a gateway process."""

    def __init__(self, *, connect_timeout_s: float, idle_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, ttl_dns_cache=10)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            read_bufsize=READ_BUFFER_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> UpstreamAnswer:
        """Send the request and wait for the status. Raises AttemptFailed where another deployment may do better, and an
        ApiError where the request itself was refused."""
        assert self._session is not None, "used outside of its context"
        try:
            response = await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            raise AttemptFailed(Cause.CONNECT, "no connection to the deployment") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise AttemptFailed(Cause.LOST, f"the connection broke ({type(error).__name__})") from error
        if response.status == 200:
            return UpstreamAnswer(response, self._idle_timeout_s)
        try:
            refusal = await response.content.read(MAX_REFUSAL_BYTES)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise AttemptFailed(Cause.LOST, f"the connection broke ({type(error).__name__})") from error
        finally:
            response.close()
        cause = cause_of_status(response.status, refusal)
        if cause is not None:
            raise AttemptFailed(cause, f"the deployment answered {response.status}")
        raise client_error(response.status, refusal)
