"""Attempts at the deployments of a model, one after another, until one begins to answer.

Failover ends with the first event that goes to the client: from then on a failure is an error event in the stream, never
a second attempt, since the client would get the answer's beginning twice.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gateway.fleet.choice import Target
from gateway.metering.usage import Usage, usage_of
from gateway.relay.causes import AttemptFailed, Cause, error_for
from gateway.relay.sse import EventSplitter, EventTooLarge
from gateway.relay.stream import StreamEditor, StreamEnd, UpstreamErrorEvent
from gateway.relay.upstream import Upstream, UpstreamAnswer

Report = Callable[[Target, Cause | None], None]
"""Told once an attempt: None for one that began to answer."""

Began = TypeVar("Began")

DRAIN_TIMEOUT_S = 1.0
"""After `[DONE]` the frontend has only its last chunk marker to send."""


@dataclass
class UnaryAnswer:
    body: bytes
    usage: Usage | None
    timing: dict[str, object] | None
    target: Target


@dataclass
class OpenStream:
    """A stream whose first event is here. Its owner closes it exactly once, whatever happens."""

    target: Target
    first: bytes
    editor: StreamEditor
    _answer: UpstreamAnswer
    _chunks: AsyncIterator[bytes]
    _splitter: EventSplitter
    first_event_at: float = field(default_factory=time.monotonic)

    async def batches(self) -> AsyncIterator[bytes]:
        """What to send, one item a read from upstream: all events that the read completed."""
        editor = self.editor
        try:
            while not editor.closed and (data := await anext(self._chunks, b"")):
                batch = b"".join(map(editor.feed, self._splitter.feed(data)))
                if batch:
                    yield batch
            if not editor.closed:
                # A last event without its closing blank line: SDKs would drop it silently, so it gets one.
                rest = self._splitter.rest()
                yield (editor.feed(rest + b"\n\n") if rest.strip() else b"") + editor.end()
        except AttemptFailed as failed:
            yield editor.fail(UpstreamErrorEvent(502, failed.message), StreamEnd.TRUNCATED)
        except EventTooLarge as error:
            yield editor.fail(UpstreamErrorEvent(502, str(error)))

    async def finish(self) -> None:
        """After the last byte has gone to the client: read the end of the body, so that the connection can serve another
        request; close it where that is not to be had."""
        if self.editor.ending is not StreamEnd.COMPLETE:
            self._answer.close()
            return
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                async for _ in self._chunks:
                    pass
            self._answer.release()
        except (TimeoutError, AttemptFailed):
            self._answer.close()

    def close(self) -> None:
        self._answer.close()


class Attempts:
    """The attempts of one request."""

    def __init__(self, upstream: Upstream, targets: list[Target], path: str, report: Report) -> None:
        self._upstream = upstream
        self._targets = targets
        self._path = path
        self._report = report
        self.made = 0

    async def stream(
        self,
        headers: dict[str, str],
        body: bytes,
        *,
        new_editor: Callable[[], StreamEditor],
        max_event_bytes: int,
        timeout_s: float,
    ) -> OpenStream:
        """The first stream that begins, each given `timeout_s` for its first event and an editor of its own. Raises the
        ApiError that the client gets."""

        async def begin(target: Target, answer: UpstreamAnswer) -> OpenStream:
            editor = new_editor()
            splitter = EventSplitter(max_event_bytes)
            chunks = answer.chunks()
            async for data in chunks:
                try:
                    first = b"".join(map(editor.feed, splitter.feed(data)))
                except EventTooLarge as error:
                    raise AttemptFailed(Cause.GARBAGE, str(error)) from error
                if editor.error is not None and not editor.began:
                    raise AttemptFailed(_cause_of_event(editor.error), editor.error.message)
                if editor.began:
                    answer.begun()
                    return OpenStream(target, first, editor, answer, chunks, splitter)
            raise AttemptFailed(Cause.EMPTY, "the deployment answered 200 without an event")

        return await self._first(headers, body, begin, timeout_s)

    async def unary(self, headers: dict[str, str], body: bytes, *, timeout_s: float) -> UnaryAnswer:
        """The first whole answer, each attempt given `timeout_s` for all of it. Raises the ApiError that the client
        gets."""

        async def read(target: Target, answer: UpstreamAnswer) -> UnaryAnswer:
            body = b"".join([data async for data in answer.chunks()])
            answer.release()
            return _unary_of(body, target)

        return await self._first(headers, body, read, timeout_s)

    async def _first(
        self,
        headers: dict[str, str],
        body: bytes,
        begin: Callable[[Target, UpstreamAnswer], Awaitable[Began]],
        timeout_s: float,
    ) -> Began:
        failures: list[AttemptFailed] = []
        for target in self._targets:
            self.made += 1
            try:
                begun = await self._attempt(target, headers, body, begin, timeout_s)
            except AttemptFailed as failed:
                self._report(target, failed.cause)
                failures.append(failed)
                continue
            self._report(target, None)
            return begun
        raise error_for(failures)

    async def _attempt(
        self,
        target: Target,
        headers: dict[str, str],
        body: bytes,
        begin: Callable[[Target, UpstreamAnswer], Awaitable[Began]],
        timeout_s: float,
    ) -> Began:
        answer: UpstreamAnswer | None = None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._upstream.post(f"{target.frontend}/v1/{self._path}", headers, body)
                return await begin(target, answer)
        except TimeoutError as error:
            self._close(answer)
            raise AttemptFailed(Cause.FIRST_EVENT_TIMEOUT, "no first event in time") from error
        except BaseException:  # also a client that left: whatever ends the attempt closes its connection
            self._close(answer)
            raise

    @staticmethod
    def _close(answer: UpstreamAnswer | None) -> None:
        if answer is not None:
            answer.close()


def _cause_of_event(error: UpstreamErrorEvent) -> Cause:
    if error.status == 529:
        return Cause.BUSY
    return Cause.UNAVAILABLE if error.status == 503 else Cause.SERVER_ERROR


def _unary_of(body: bytes, target: Target) -> UnaryAnswer:
    try:
        parsed = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise AttemptFailed(Cause.GARBAGE, "the deployment's answer was not JSON") from error
    if not isinstance(parsed, dict) or not parsed.get("choices"):
        raise AttemptFailed(Cause.EMPTY, "the deployment's answer holds no choice")
    if any(choice.get("finish_reason") == "error" for choice in parsed["choices"]):
        raise AttemptFailed(Cause.SERVER_ERROR, "the engine failed while generating")
    extension = parsed.pop("nvext", None)
    if extension is not None:
        body = msgspec.json.encode(parsed)
    timing = extension.get("timing") if isinstance(extension, dict) else None
    usage = usage_of(parsed["usage"]) if isinstance(parsed.get("usage"), dict) else None
    return UnaryAnswer(body, usage, timing, target)
