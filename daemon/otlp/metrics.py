"""Send the metrics to an OTLP receiver at intervals."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio

from daemon.fences import Fences
from daemon.otlp.encoding import Gauge, metrics_message
from daemon.otlp.sender import OtlpReceiver, ReceiverFailed
from daemon.timers import TIMERS


@asynccontextmanager
async def open_metrics(
    receiver: OtlpReceiver,
    fences: Fences,
    resource: Mapping[str, object],
    gauges: Callable[[], Awaitable[Iterable[Gauge]]],
    *,
    now: Callable[[], int],
    interval: float,
) -> AsyncIterator[None]:
    """Send the metrics every `interval` seconds while the block runs.

    A failed message is not repeated.
    """
    since = now()

    async def run() -> None:
        while True:
            await trio.sleep(interval)
            encode = partial(
                metrics_message,
                resource,
                list(await gauges()),
                dict(TIMERS.counters),
                dict(TIMERS.timers),
                since=since,
                now=now(),
                clock=TIMERS.clock(),
            )
            body = await trio.to_thread.run_sync(encode)
            try:
                await receiver.send("/v1/metrics", body)
            except ReceiverFailed:
                continue  # the receiver has logged the error, and the next message has all totals

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, "metrics", run)
        yield
        nursery.cancel_scope.cancel()
