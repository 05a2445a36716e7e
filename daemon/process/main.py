"""The composition root: opens the parts, waits for a signal, and closes the parts in reverse.

`daemon/process/parts.py` has the table of the parts.

On SIGTERM, the HTTP servers close first, then the loops. Then the runner releases its tasks, or
stops them in development mode. Last, the writer commits queued writes. After an exception in
any part, the process exits, so that no daemon runs with some parts missing.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import trio

from daemon.clock import Clock, SystemClock
from daemon.config.settings import Settings
from daemon.launcher.client import LauncherGone
from daemon.launcher.hardening import disable_core_dumps, set_priority, use_single_heap
from daemon.log import daemon_log
from daemon.process.health import check_health
from daemon.process.parts import DaemonParts, open_parts
from daemon.process.startup import StartupResult, begin
from daemon.process.systemd import ServiceManager, run_watchdog
from storage import garbage
from storage.errors import StewardError, StorageBusy, StorageError, leaf_errors
from storage.loop_share import SWITCH_INTERVAL

log = logging.getLogger("steward")

# Exit statuses (sysexits.h) that the service manager should not answer with an immediate restart.
EXIT_FAILURE = 1
EXIT_STORAGE = 74
EXIT_CONFIG = 78

_CLOSE_WITHIN = 5.0  # seconds from the first signal to a forced exit
_RANDOM_BITS = 0xFFFFFFFF_FFFF_0FFF_3FFF_FFFFFFFFFFFF
_VERSION_4 = 0x00000000_0000_4000_8000_000000000000


class UniqueIds:
    """An endless iterator of random UUIDs, which creates no UUID objects.

    Threads may share it, which a generator does not allow.
    """

    def __iter__(self) -> "UniqueIds":
        """Return itself."""
        return self

    def __next__(self) -> str:
        """Return another identifier."""
        text = f"{int.from_bytes(os.urandom(16)) & _RANDOM_BITS | _VERSION_4:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def run(config: Settings, read: Callable[[], Settings], channel: socket.socket, file: Path) -> int:
    """Run the daemon until a signal stops it; return the exit status.

    `read` reads the settings again from their sources, including `file`, to apply those that can
    change at runtime. `channel` is the socket to the launcher.
    """
    daemon_log.configure_logging(config.log_level, config.log_format, os.environ)
    status = 0
    disable_core_dumps()
    use_single_heap()
    set_priority()
    try:
        with begin(config, read, channel, file) as begun:
            trio.run(serve, begun, SystemClock())
    except* LauncherGone as group:
        status = _exit_with_errors(group, EXIT_FAILURE)
    except* StorageBusy as group:  # the service manager tries again, because locks end
        status = _exit_with_errors(group, EXIT_FAILURE)
    except* StorageError as group:
        status = _exit_with_errors(group, EXIT_STORAGE)
    except* StewardError as group:
        status = _exit_with_errors(group, EXIT_CONFIG)
    except* Exception as group:
        log.exception("the daemon failed", exc_info=group)
        status = _exit_with_errors(group, EXIT_FAILURE)
    return status


def _exit_with_errors(group: BaseExceptionGroup, status: int) -> int:
    for text in dict.fromkeys(str(error) or type(error).__name__ for error in leaf_errors(group)):
        print(f"steward: {text}", file=sys.stderr)  # noqa: T201  # the final message for the user
    return status


async def serve(startup_result: StartupResult, clock: Clock) -> None:
    """Open the parts, report readiness, and close the parts after a signal."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            stopping = trio.Event()
            nursery.start_soon(_on_signals, signals, stopping)
            async with open_parts(startup_result, clock, UniqueIds()) as parts:
                with garbage.short_pauses():
                    await _operate(parts, stopping)
            nursery.cancel_scope.cancel()


async def _operate(parts: DaemonParts, stopping: trio.Event) -> None:
    """Report readiness, and reload the settings at each SIGHUP, until the daemon stops."""
    config, manager = parts.config, ServiceManager(os.environ)
    async with trio.open_nursery() as nursery:
        await nursery.start(_reload_on_hangup, parts, manager)
        nursery.start_soon(
            run_watchdog, manager, partial(check_health, parts.store, config.task_socket_path)
        )
        sys.setswitchinterval(SWITCH_INTERVAL)
        nursery.start_soon(
            parts.fences.keep_running, "Python garbage collection", garbage.run_collector
        )
        watch = partial(parts.launcher.watch, parts.context.clock.now)
        nursery.start_soon(parts.fences.keep_running, "launcher", watch)
        if contexts := parts.tls_contexts:
            # Imported late: most daemons have no certificate.
            from daemon.web.certificate_files import watch_validity

            watch = partial(watch_validity, contexts, parts.context.clock)
            nursery.start_soon(parts.fences.keep_running, "certificates", watch)
        # This is the only line on standard output, for users and for scripts that wait for it.
        print(f"steward is ready at {config.address}", flush=True)  # noqa: T201
        manager.ready(_status(config))
        parts.is_ready.set()
        await stopping.wait()
        manager.stopping()
        nursery.cancel_scope.cancel()


def _status(config: Settings) -> str:
    return f"answers at {config.address}"


async def _reload_on_hangup(
    parts: DaemonParts,
    manager: ServiceManager,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Reload the settings at each SIGHUP."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            manager.reloading()
            try:
                # Imported late: most daemons never reload.
                from daemon.process.reload import SettingsReloader
            except (ImportError, OSError) as error:
                log.warning(
                    "the settings are unchanged, because they cannot be reloaded: %s", error
                )
                manager.ready(_status(parts.config))
                continue
            reload = SettingsReloader(
                parts.begun.given,
                parts.begun.read,
                parts.listeners,
                parts.context,
                parts.launcher.read_own,
                parts.wrapper_listeners,
            )
            await reload()
            if contexts := parts.tls_contexts:
                from daemon.web.certificate_files import report_validity

                report_validity(contexts, parts.context.clock.now())
            manager.ready(_status(parts.config))


async def _on_signals(signals: AsyncIterator[int], stopping: trio.Event) -> None:
    """Start the shutdown at the first signal; exit at the second signal or after a time limit."""
    await anext(signals)
    log.info("ending")
    stopping.set()
    with trio.move_on_after(_CLOSE_WITHIN):
        await anext(signals)
        log.warning("exiting immediately")
    os._exit(EXIT_FAILURE)
