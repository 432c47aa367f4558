"""One HTTP request to a Dynamo frontend: the only place that talks to the fleet."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from gateway.relay.causes import AttemptFailed, Cause, cause_of_status, client_error
from gateway.relay.connection import Broken, Connection, Silent, Take
from gateway.relay.pool import Address, Origin, Pool, address_of

MAX_REFUSAL_BYTES = 64 * 1024
"""How much of an upstream's error body is read."""


class UpstreamAnswer:
    """A 200 from a frontend, not read yet. `close` ends it at once: the frontend sees the disconnect and cancels."""

    __slots__ = ("_connection", "_origin", "_pool", "idle_timeout_s")

    def __init__(self, connection: Connection, origin: Origin, pool: Pool, idle_timeout_s: float) -> None:
        self._connection: Connection | None = connection
        self._origin = origin
        self._pool = pool
        self.idle_timeout_s = idle_timeout_s

    def begun(self) -> None:
        """From now on silence counts: the wait for the first event is bounded by whoever attempts it."""
        if self._connection is not None:
            self._connection.bound_silence(self.idle_timeout_s)

    async def read(self) -> bytes:
        """What has come of the body since the last read; nothing at its end. Raises AttemptFailed(LOST) when the
        connection breaks or, once begun, stays silent."""
        try:
            return await self._open().read()
        except (Silent, Broken) as error:
            raise self._lost(error) from error

    async def pour(self, take: Take) -> bool:
        """As reads, each given to `take` in the event loop's own turn. True when `take` has said that it wants no more for
        now, False at the body's end. Raises what `read` raises."""
        try:
            return await self._open().pour(take)
        except (Silent, Broken) as error:
            raise self._lost(error) from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Every read to the end."""
        while data := await self.read():
            yield data

    def _open(self) -> Connection:
        if self._connection is None:
            raise AttemptFailed(Cause.LOST, "the connection was closed here")
        return self._connection

    def _lost(self, error: Silent | Broken) -> AttemptFailed:
        if isinstance(error, Silent):
            return self.silent()
        return AttemptFailed(Cause.LOST, f"the connection broke ({error})")

    def silent(self) -> AttemptFailed:
        return AttemptFailed(Cause.LOST, f"no event for {self.idle_timeout_s:g} s")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def release(self) -> None:
        """The body has been read to its end: the connection may serve another request. What has not been is closed."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.done():
            self._pool.put(self._origin, connection)
        else:
            connection.abort()


class Upstream:
    """The connection pool of a gateway process."""

    def __init__(self, *, connect_timeout_s: float, idle_timeout_s: float) -> None:
        self._pool = Pool(connect_timeout_s)
        self._idle_timeout_s = idle_timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.close()

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> UpstreamAnswer:
        """Send the request and wait for the status. Raises AttemptFailed where another deployment may do better, and an
        ApiError where the request itself was refused. Redirects are not followed."""
        address = address_of(url)
        try:
            connection = await self._pool.take(address.origin)
        except (OSError, TimeoutError) as error:
            raise AttemptFailed(Cause.CONNECT, "no connection to the deployment") from error
        answer = UpstreamAnswer(connection, address.origin, self._pool, self._idle_timeout_s)
        try:
            connection.send(_request(address, headers, body))
            status = await connection.head()
            if status == 200:
                return answer
            refusal = await _refusal(answer)
        except Broken as error:
            answer.close()
            raise AttemptFailed(Cause.LOST, f"the connection broke ({error})") from error
        except BaseException:
            answer.close()
            raise
        answer.release()
        cause = cause_of_status(status, refusal)
        if cause is not None:
            raise AttemptFailed(cause, f"the deployment answered {status}")
        raise client_error(status, refusal)


def _request(address: Address, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"POST {address.path} HTTP/1.1", f"host: {address.host_header}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a line end within a header")
    return b"".join((head.encode("latin-1"), b"\r\n\r\n", body))


async def _refusal(answer: UpstreamAnswer) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < MAX_REFUSAL_BYTES and (data := await answer.read()):
        parts.append(data)
        size += len(data)
    return b"".join(parts)[:MAX_REFUSAL_BYTES]
