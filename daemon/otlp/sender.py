"""Send spans to an OTLP receiver in batches, from a bounded queue.

A batch is sent when it is full, or some seconds after its first span. A batch is sent again, after
a growing delay, if the receiver did not respond or if OTLP allows a retry for the status code.
While the queue is full, new spans are dropped and counted. No failure delays the work that the
spans describe.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
import trio

from daemon.fences import Fences
from daemon.net import http_client
from daemon.net.egress_policy import EgressDenied
from daemon.net.http_client import HttpError, Permit
from daemon.otlp.encoding import spans_message
from daemon.otlp.recorder import Recorder, Span
from daemon.timers import TIMERS
from storage.request_context import TRACING

log = logging.getLogger("steward.otlp")

QUEUE = 16_384  # spans, some 8 MB
BATCH = 512  # spans of a request, some 200 KB
INTERVAL = 2.0  # seconds from the first span of a batch until the batch is sent
_LAST = 1.0  # seconds for the last batches at the end
_REQUEST = 10.0  # seconds for a request
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each further attempt
_LONGEST_PAUSE = 60.0  # seconds that a receiver may ask for
_RETRIED = frozenset({429, 502, 503, 504})
_ANSWER = 64 * 1024  # bytes of a response that are read
SENT, DROPPED = "steward.otlp.spans_sent", "steward.otlp.spans_dropped"


class ReceiverFailed(Exception):
    """A message was not accepted.

    `pause` is the minimum number of seconds before a retry, or None if a retry cannot succeed.
    """

    def __init__(self, reason: str, *, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


class PartialSuccess(msgspec.Struct, rename="camel"):
    """The part of a response that reports refused spans."""

    rejected_spans: int | str = 0
    error_message: str = ""


class ExportAnswer(msgspec.Struct, rename="camel"):
    """The response of a receiver."""

    partial_success: PartialSuccess | None = None


class OtlpReceiver:
    """The OTLP receiver of the settings. `token` returns its bearer token, or an empty string."""

    def __init__(self, url: str, permit: Permit, token: Callable[[], str]) -> None:
        self._url, self._permit, self._token = url.rstrip("/"), permit, token
        self._is_failing = False

    async def send(self, path: str, body: bytes) -> bytes:
        """Send a message to one of OTLP's paths; return the response. Raises `ReceiverFailed`."""
        try:
            with trio.fail_after(_REQUEST):
                answer = await self._post(path, body)
        except trio.TooSlowError:
            problem = ReceiverFailed(f"no answer within {_REQUEST:.0f} seconds", pause=0)
        except (HttpError, EgressDenied) as error:
            problem = ReceiverFailed(str(error), pause=0)
        except ReceiverFailed as error:
            problem = error
        else:
            if self._is_failing:
                log.info("the OTLP receiver %s accepts data again", self._url)
                self._is_failing = False
            return answer
        if not self._is_failing:  # one line for each outage
            log.warning("the OTLP receiver %s does not accept data: %s", self._url, problem)
            self._is_failing = True
        raise problem

    async def _post(self, path: str, body: bytes) -> bytes:
        headers = [("content-type", "application/json")]
        # In a thread, because the token is in a file.
        if token := await trio.to_thread.run_sync(self._token):
            headers.append(("authorization", f"Bearer {token}"))
        asking = http_client.send_request(
            f"{self._url}{path}", method="POST", headers=headers, body=body, permit=self._permit
        )
        async with asking as response:
            text = bytearray()
            async for chunk in response.body:
                text += chunk
                if len(text) > _ANSWER:
                    break
        if response.status == 200:
            return bytes(text)
        pause = None
        if response.status in _RETRIED:
            pause = _seconds(response.headers.get("retry-after", ""))
        raise ReceiverFailed(f"status {response.status}", pause=pause)


def _seconds(text: str) -> float:
    """Return the delay that a `Retry-After` header requests, in seconds; 0 if it has a date."""
    return min(float(text), _LONGEST_PAUSE) if text.isascii() and text.isdigit() else 0.0


class SpanQueue:
    """The queue of finished spans, and the loop that sends them."""

    def __init__(
        self, send: Callable[[str, bytes], Awaitable[bytes]], resource: Mapping[str, object]
    ) -> None:
        self._send, self._resource = send, resource
        self._spans: deque[Span] = deque()
        self._arrived, self._is_full = trio.Event(), trio.Event()
        self._is_idle = True  # whether the loop waits for a span
        self._loop = trio.lowlevel.current_trio_token()

    def put(self, span: Span) -> None:
        """Add a span, or drop it if the queue is full. Any thread may call it."""
        waiting = len(self._spans)
        if waiting >= QUEUE:
            TIMERS.count(DROPPED)
            return
        self._spans.append(span)
        # The loop sets the flag before it reads the queue, so either this thread or the loop sees
        # the other.
        if self._is_idle or waiting == BATCH - 1:
            self._loop.run_sync_soon(self._log_dropped, idempotent=True)

    def _log_dropped(self) -> None:
        if not self._spans:
            return
        self._is_idle = False
        self._arrived.set()
        if len(self._spans) >= BATCH:
            self._is_full.set()

    async def run(self) -> None:
        """Send batches until cancelled."""
        while True:
            await self._arrived.wait()
            with trio.move_on_after(INTERVAL):
                await self._is_full.wait()
            if batch := self._next():
                await self._deliver(batch)

    def _next(self) -> list[Span]:
        batch = [self._spans.popleft() for _ in range(min(BATCH, len(self._spans)))]
        if not self._spans:
            self._arrived, self._is_idle = trio.Event(), True
            self._log_dropped()
        if len(self._spans) < BATCH:
            self._is_full = trio.Event()
        return batch

    async def finish(self) -> None:
        """Send the remaining batches, each once, within a second."""
        with trio.move_on_after(_LAST):
            while self._spans:
                await self._attempt(self._next())

    async def _deliver(self, batch: list[Span]) -> None:
        """Send a batch, with retries after temporary failures; drop it after the last attempt."""
        for pause in _PAUSES:
            wait = await self._attempt(batch)
            if wait is None:
                return
            await trio.sleep(max(wait, pause))
        if await self._attempt(batch) is not None:
            _drop(len(batch))

    async def _attempt(self, batch: list[Span]) -> float | None:
        """Try to send a batch once; return the minimum delay in seconds before a retry.

        Return None if no retry is needed, or if a retry cannot succeed.
        """
        # In a thread, because a full batch takes longer than its share of the event loop.
        body = await trio.to_thread.run_sync(spans_message, self._resource, batch)
        try:
            answer = await self._send("/v1/traces", body)
        except ReceiverFailed as error:
            if error.pause is None:
                _drop(len(batch))
            return error.pause
        refused = _refused(answer)
        _drop(refused)
        TIMERS.count(SENT, len(batch) - refused)
        return None


def _refused(answer: bytes) -> int:
    """Return the number of spans that the receiver refused, as a response body reports it."""
    try:
        partial_success = (
            msgspec.json.decode(answer, type=ExportAnswer).partial_success if answer else None
        )
        number = int(partial_success.rejected_spans) if partial_success else 0
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return 0  # the status accepted the message
    if partial_success and number:
        log.warning(
            "the OTLP receiver refused %d spans: %.200s", number, partial_success.error_message
        )
    return number


def _drop(number: int) -> None:
    if number:
        TIMERS.count(DROPPED, number)


@asynccontextmanager
async def open_traces(
    receiver: OtlpReceiver,
    fences: Fences,
    resource: Mapping[str, object],
    *,
    now: Callable[[], int],
    random: Callable[[], float],
    percent: int,
) -> AsyncIterator[None]:
    """Record spans and send them while the block runs.

    `now` returns nanoseconds since the epoch. Of the traces that begin in this daemon, `percent` %
    are sampled.
    """
    queue = SpanQueue(receiver.send, resource)
    TRACING.recorder = Recorder(queue.put, now, random, percent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, "traces", queue.run)
        try:
            yield
        finally:
            TRACING.recorder = None
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await queue.finish()
