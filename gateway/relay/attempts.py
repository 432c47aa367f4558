"""Attempts at the deployments of a model, one after another, until one begins to answer.

Failover ends with the first event that goes to the client: from then on a failure is an error event in the stream, never
a second attempt, since the client would get the answer's beginning twice.

Each attempt enters through the request's gate and holds a ticket until it has ended. A deployment whose breaker is open
or that is full is passed over; when nothing else is left, the request waits for capacity at the first that was full.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from gateway.breaker import Ending
from gateway.errors import ApiError, UpstreamTimeout
from gateway.fleet.choice import Target
from gateway.guard.gate import Gate
from gateway.guard.ticket import Ticket
from gateway.relay.causes import ENDINGS, AttemptFailed, Cause, client_error, error_for
from gateway.relay.limit import Limit
from gateway.relay.sse import EventSplitter, EventTooLarge, is_comment
from gateway.relay.stream import Editor, StreamEnd, UpstreamErrorEvent
from gateway.relay.upstream import Upstream, UpstreamAnswer
from gateway.relay.whole import Whole

WriteNow = Callable[[bytes], bool]
"""Sends to the client at once; False, and nothing is sent, where it is to be waited for."""

Report = Callable[[Target, Cause | None], None]
"""Told once an attempt that was sent: None for one that began to answer."""

Began = TypeVar("Began")
Begin = Callable[[Target, UpstreamAnswer, Ticket], Awaitable[Began]]

MAX_ATTEMPTS = 3
"""Attempts of a request that may cost an engine work: enough to leave a dead frontend and a dead deployment behind, few
enough that a request which breaks every engine does not multiply its harm. What is refused at the door (`AT_THE_DOOR`) costs
none: every deployment is asked once before the client hears that none can."""

AT_THE_DOOR = frozenset({Cause.CONNECT, Cause.UNAVAILABLE, Cause.BUSY, Cause.REFUSED_US})

USUAL_LONG_ANSWER_TOKENS = 4096
"""What an answer without a stated limit is reckoned at when a deployment that has not answered is judged."""

REPLY_MARGIN_S = 0.02
"""An attempt ends this much before the request's deadline, so that its end is its own and the client still hears of it."""

DRAIN_TIMEOUT_S = 1.0
"""After `[DONE]` the frontend has only its last chunk marker to send."""


@dataclass
class UnaryAnswer:
    whole: Whole
    target: Target


@dataclass
class OpenStream:
    """A stream whose first event is here. Its owner closes it exactly once, whatever happens; with it goes the ticket."""

    target: Target
    first: bytes
    editor: Editor
    ticket: Ticket
    _answer: UpstreamAnswer
    _splitter: EventSplitter
    first_event_at: float = field(default_factory=time.monotonic)
    _corrected: bool = False
    _heard_at: float = 0.0
    """Monotonic: an event that is no comment, or when it was last waited for."""

    async def batches(self, write_now: WriteNow) -> AsyncIterator[bytes]:
        """What to send, of all events that have come together: the task is woken only with what `write_now` refused,
        and with what ends the stream. The rest is sent in the event loop's own turn, while the task waits here."""
        editor = self.editor
        refused: list[bytes] = []

        def take(data: bytes) -> bool:
            events = self._splitter.feed(data)
            self._listen(data, events)
            batch = b"".join(map(editor.feed, events))
            if not self._corrected:
                self.correct()
            # The end is the task's: it leaves together with the body's.
            if editor.closed or (batch and not write_now(batch)):
                refused.append(batch)
                return False
            return True

        try:
            more = not editor.closed
            while more:
                # While the client was waited for, nobody listened to the deployment.
                self._heard_at = time.monotonic()
                more = await self._answer.pour(take) and not editor.closed
                if refused and (batch := refused.pop()):
                    yield batch
            if not editor.closed:
                # A last event without its closing blank line: SDKs would drop it silently, so it gets one.
                rest = self._splitter.rest()
                yield (editor.feed(rest + b"\n\n") if rest.strip() else b"") + editor.end()
        except AttemptFailed as failed:
            yield editor.fail(UpstreamErrorEvent(502, failed.message), StreamEnd.TRUNCATED)
        except EventTooLarge as error:
            yield editor.fail(UpstreamErrorEvent(502, str(error)))

    def _listen(self, data: bytes, events: list[bytes]) -> None:
        """A frontend may send comments for an engine that has fallen silent (DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS): they keep
        the connection, and are no sign of life. Raises AttemptFailed(LOST)."""
        now = time.monotonic()
        if not (events and data.startswith(b":") and all(map(is_comment, events))):
            self._heard_at = now
        elif now - self._heard_at > self._answer.idle_timeout_s:
            raise self._answer.silent()

    def correct(self) -> None:
        """The ticket's weight, as soon as the engine has said what it found and what it had to compute."""
        usage = self.editor.usage
        if usage is not None and usage.cached_known:
            self._corrected = True
            self.ticket.correct(usage.uncached_tokens)

    async def finish(self) -> None:
        """After the last byte has gone to the client: read the end of the body, so that the connection can serve another
        request; close it where that is not to be had."""
        if self.editor.ending is not StreamEnd.COMPLETE:
            self._answer.close()
            return
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while await self._answer.read():
                    pass
            self._answer.release()
        except (TimeoutError, AttemptFailed):
            self._answer.close()

    def close(self) -> None:
        """However it ended, also for a client that left on `[DONE]`: the connection is not left open for nobody."""
        if self.editor.ending is StreamEnd.COMPLETE:
            self._answer.release()
        else:
            self._answer.close()


class Allowance(NamedTuple):
    """What an attempt may take, and what it says of the deployment if it takes longer."""

    seconds: float
    late: Ending


def whole_answer_allowance(
    ticket: Ticket, left_s: float, most_tokens: int | None, *, deadline_is_ours: bool
) -> Allowance:
    """For an answer that comes whole, so that nothing is heard before its last token. `left_s` to the request's deadline.

    The deployment is owed the time of a first event and that of its tokens at the slowest pace. Where the client states
    how many it wants at most, the attempt ends then, and another deployment may have what time is left. A client that
    gives less is no proof against the deployment (Ending.TOO_LITTLE_TIME)."""
    owed_s = ticket.first_event_s + (most_tokens or USUAL_LONG_ANSWER_TOKENS) * ticket.token_s
    left_s = max(0.0, left_s - REPLY_MARGIN_S)
    if most_tokens is not None and owed_s <= left_s:
        return Allowance(owed_s, Ending.FIRST_EVENT_TIMEOUT)
    blamed = deadline_is_ours or owed_s <= left_s
    return Allowance(left_s, Ending.FIRST_EVENT_TIMEOUT if blamed else Ending.TOO_LITTLE_TIME)


class Attempts:
    """The attempts of one request."""

    def __init__(
        self, upstream: Upstream, targets: list[Target], path: str, gate: Gate, patience_s: float, report: Report
    ) -> None:
        """`patience_s` is how long the request may wait for capacity once no deployment has any."""
        self._upstream = upstream
        self._targets = targets
        self._path = path
        self._gate = gate
        self._patience_s = patience_s
        self._report = report
        self.made = 0

    async def stream(
        self, headers: dict[str, str], body: bytes, *, new_editor: Callable[[], Editor], max_event_bytes: int
    ) -> OpenStream:
        """The first stream that begins, each given its ticket's time for the first event and an editor of its own.
        Raises the ApiError that the client gets."""

        async def begin(target: Target, answer: UpstreamAnswer, ticket: Ticket) -> OpenStream:
            editing = new_editor()
            splitter = EventSplitter(max_event_bytes)
            while data := await answer.read():
                try:
                    first = b"".join(map(editing.feed, splitter.feed(data)))
                except EventTooLarge as error:
                    raise AttemptFailed(Cause.GARBAGE, str(error)) from error
                if editing.error is not None and not editing.began:
                    raise _failure_of_event(editing.error)
                if editing.began:
                    answer.begun()
                    stream = OpenStream(target, first, editing, ticket, answer, splitter)
                    stream.correct()
                    return stream
            raise AttemptFailed(Cause.EMPTY, "the deployment answered 200 without an event")

        return await self._first(
            headers, body, begin, lambda ticket: Allowance(ticket.first_event_s, Ending.FIRST_EVENT_TIMEOUT)
        )

    async def unary(
        self,
        headers: dict[str, str],
        body: bytes,
        read: Callable[[bytes], Whole],
        *,
        deadline: float,
        deadline_is_ours: bool,
        most_tokens: int | None,
    ) -> UnaryAnswer:
        """The first whole answer before `deadline` (monotonic), of `most_tokens` where the client limits it. Raises the
        ApiError that the client gets."""

        async def begin(target: Target, answer: UpstreamAnswer, ticket: Ticket) -> UnaryAnswer:
            parts: list[bytes] = []
            while data := await answer.read():
                parts.append(data)
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            answer.release()
            whole = read(body)
            # Nothing to correct: what the ticket holds goes back in the same moment.
            ticket.close(Ending.SUCCEEDED)
            return UnaryAnswer(whole, target)

        def allowance(ticket: Ticket) -> Allowance:
            left_s = deadline - time.monotonic()
            return whole_answer_allowance(ticket, left_s, most_tokens, deadline_is_ours=deadline_is_ours)

        return await self._first(headers, body, begin, allowance, deadline - REPLY_MARGIN_S)

    async def _first(
        self,
        headers: dict[str, str],
        body: bytes,
        begin: Begin[Began],
        allowance_of: Callable[[Ticket], Allowance],
        deadline: float = math.inf,
    ) -> Began:
        failures: list[AttemptFailed] = []
        passed_over: set[str] = set()
        asked: set[str] = set()
        worked = 0
        full: list[Target] = []
        alone = len({target.deployment.name for target in self._targets}) == 1
        waiting = [(target, self._patience_s if alone else 0.0) for target in self._targets]
        while waiting and worked < MAX_ATTEMPTS and time.monotonic() < deadline:
            target, patience_s = waiting.pop(0)
            name = target.deployment.name
            # Another frontend of a deployment that was asked is one attempt among three, as ever.
            if name not in passed_over and (name not in asked or self.made < MAX_ATTEMPTS):
                try:
                    ticket = await self._gate.enter(target.deployment, patience_s)
                except AttemptFailed as refused:
                    failures.append(refused)
                    passed_over.add(name)
                    if refused.cause is Cause.FULL and patience_s == 0.0:
                        full.append(target)
                else:
                    asked.add(name)
                    try:
                        return await self._attempt(target, ticket, headers, body, begin, allowance_of(ticket))
                    except AttemptFailed as failed:
                        failures.append(failed)
                        worked += failed.cause not in AT_THE_DOOR
            if not waiting and full and self._patience_s > 0:
                passed_over.discard(full[0].deployment.name)
                failures = [each for each in failures if each.cause is not Cause.FULL]
                waiting, full = [(full[0], self._patience_s)], []
        if self._targets and not failures:
            raise UpstreamTimeout("The request's time was up before it could be sent.")
        raise error_for(failures)

    async def _attempt(
        self,
        target: Target,
        ticket: Ticket,
        headers: dict[str, str],
        body: bytes,
        begin: Begin[Began],
        allowance: Allowance,
    ) -> Began:
        """Raises AttemptFailed where another may do better. The ticket is closed unless an answer began."""
        self.made += 1
        answer: UpstreamAnswer | None = None
        ending: Ending | None = Ending.CLIENT_GONE
        left_at: float | None = None
        try:
            with Limit(allowance.seconds):
                answer = await self._upstream.post(f"{target.frontend}/v1/{self._path}", headers, body)
                begun = await begin(target, answer, ticket)
            ending = None
        except TimeoutError as error:
            ending = allowance.late
            self._report(target, Cause.FIRST_EVENT_TIMEOUT)
            raise AttemptFailed(Cause.FIRST_EVENT_TIMEOUT, "no first event in time") from error
        except AttemptFailed as failed:
            ending = ENDINGS[failed.cause]
            self._report(target, failed.cause)
            raise
        except ApiError:
            ending = Ending.REQUEST_REJECTED
            raise
        except asyncio.CancelledError:
            left_at = time.monotonic()
            raise
        finally:
            # Whatever ends the attempt closes its connection and its ticket, also a client that left or a bug of ours.
            if ending is not None:
                # The ticket first: closing a connection may fail.
                ticket.close(ending, left_at=left_at)
                if answer is not None:
                    answer.close()
        self._report(target, None)
        return begun


def _failure_of_event(error: UpstreamErrorEvent) -> Exception:
    """An error event before anything else means what its status would have meant."""
    if error.status == 529:
        return AttemptFailed(Cause.BUSY, error.message)
    if error.status == 503:
        return AttemptFailed(Cause.UNAVAILABLE, error.message)
    if 400 <= error.status < 500 and error.status not in (401, 403, 404, 408, 429):
        return client_error(error.status, msgspec.json.encode({"message": error.message}))
    return AttemptFailed(Cause.BUSY if error.status == 429 else Cause.SERVER_ERROR, error.message)
