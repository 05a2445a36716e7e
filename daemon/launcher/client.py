"""The daemon's client for the launcher: concurrent requests, and one task that reads answers.

A cancelled request stays in the table of pending requests, so that the descriptors of its late
answer are closed. When the launcher ends, the daemon ends: no code catches `LauncherGone`.
"""

import errno
import itertools
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import trio

from daemon.launcher.channel import (
    LONGEST,
    NO_DESCRIPTOR,
    DescriptorsLost,
    Refusal,
    close,
    read_record,
    read_sealed,
    receive,
    sealed,
    send,
)
from daemon.launcher.messages import (
    MOST_ERRANDS,
    MOST_OPEN,
    MOST_PAYLOAD,
    VERSION,
    AllocDirLayout,
    AlreadyStarted,
    Answer,
    BridgeSupport,
    ClaimList,
    ClaimText,
    CollectFiles,
    ConnectNetwork,
    ConnectPodman,
    CreateAllocDir,
    DirectoryEntries,
    DirectoryEntry,
    DirectoryPart,
    DirectoryUsage,
    EndedAttempt,
    EndSession,
    FileStatus,
    FindAttempt,
    FinishAttempt,
    ForwardedPort,
    GetProcessInfo,
    GetSessionExit,
    Hello,
    HelloReply,
    KillAttempt,
    LaidOut,
    LauncherPolicy,
    ListAllocations,
    ListClaims,
    ListDirectory,
    MakeVolume,
    MeasureDirectory,
    MountSecrets,
    NetworkConnected,
    NoteText,
    NumberedReply,
    NumberedRequest,
    OpenFile,
    OpenLog,
    OperationFailed,
    ProbeBridge,
    ProbeSandbox,
    ProcessStarted,
    ProgramCommand,
    ReadFile,
    ReadNote,
    ReadOwn,
    RefusedReply,
    ReleaseNetwork,
    RemoveDirectory,
    RemoveVolume,
    Request,
    RetainLogs,
    SandboxSupport,
    ScanProcesses,
    ScanResult,
    SendSignal,
    SessionExit,
    SessionOpened,
    SignalResult,
    StartProgram,
    StartSession,
    StartTask,
    TaskCommand,
    UnmountSecrets,
    UnpackStream,
    WriteFile,
    WriteNote,
)

_entries = msgspec.msgpack.Decoder(DirectoryEntries)


class LauncherGone(BaseException):
    """The launcher has ended.

    This is not a failure of a task, so code that isolates failures of tasks must let the exception
    pass.
    """

    def __init__(self) -> None:
        super().__init__("the launcher has ended, so the daemon ends too; tasks keep running")


class LauncherSilent(Exception):
    """The launcher has not answered within the time limit of a request."""


PATIENCE = 5.0  # seconds for which a client's request waits for the launcher
_PING_EVERY, _SILENT_AFTER = 5.0, 2.0  # seconds
# The part of the pending requests that is reserved for clients, so that they do not wait for a
# thousand starts.
_PLACES_OF_CLIENTS = 8
_NO_ALLOCATION = "00000000-0000-0000-0000-000000000000"
_SECOND = 1_000_000_000  # nanoseconds
_SHORTAGE_PAUSE = 1.0  # seconds until a request is repeated that lacked a file descriptor
_patience: ContextVar[float] = ContextVar("patience", default=float("inf"))

_log = logging.getLogger("steward.launcher")


class Impatience(AbstractContextManager[None]):
    """A context manager that limits each request of the block to `PATIENCE` seconds.

    A request that takes longer raises `LauncherSilent`. Requests that a child process handles may
    take longer, as long as the launcher itself responds.
    """

    def __enter__(self) -> None:
        """Set the limit."""
        self._before = _patience.set(PATIENCE)

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Restore the previous limit."""
        _patience.reset(self._before)


def longest_wait() -> float:
    """Return for how many seconds a request of the current Trio task may wait for an answer."""
    return _patience.get()


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _patient(method: Callable[_P, Awaitable[_T]]) -> Callable[_P, Awaitable[_T]]:
    """Repeat a request while the daemon or the launcher has no free file descriptor.

    Requests of clients, under `Impatience`, raise `OSError` instead. Such a shortage passes when
    tasks, sessions or connections end. A request that waits holds no file descriptor.
    """

    @wraps(method)
    async def repeated(*args: _P.args, **fields: _P.kwargs) -> _T:
        while True:
            try:
                return await method(*args, **fields)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or longest_wait() < float("inf"):
                    raise
            await trio.sleep(_SHORTAGE_PAUSE)

    return repeated


# Requests that the launcher handles in a child process.
_ERRANDS = (
    RetainLogs,
    RemoveDirectory,
    MeasureDirectory,
    MountSecrets,
    UnmountSecrets,
    UnpackStream,
    CollectFiles,
    ProbeBridge,
)
_SLOW = (*_ERRANDS, RemoveVolume)


class _Waiter:
    """A pending request.

    `spare` reserves descriptor numbers for the answer. `places` are the semaphores that limit the
    number of pending requests.
    """

    def __init__(self, spare: Sequence[int], places: Sequence[trio.Semaphore]) -> None:
        self._spare, self._places = spare, places
        self.answered = trio.Event()
        self.is_wanted = True
        self.body: Answer | None = None
        self.descriptors: list[int] = []

    def make_room(self) -> None:
        """Release the reserved descriptor numbers for the answer."""
        close(self._spare)
        self._spare = ()

    async def open(self) -> None:
        """Wait until the limits on pending requests permit this request, and count it.

        If no limit is reached, return without letting other Trio tasks run.
        """
        acquired = 0
        try:
            for slot in self._places:
                try:
                    slot.acquire_nowait()
                except trio.WouldBlock:
                    await slot.acquire()
                acquired += 1
        except BaseException:  # also when cancelled
            for slot in self._places[:acquired]:
                slot.release()
            raise

    def close(self) -> None:
        """Stop counting this request towards the limits on pending requests."""
        for slot in self._places:
            slot.release()

    def deliver(self, body: Answer, descriptors: list[int]) -> None:
        """Deliver the answer to the waiting request."""
        self.body, self.descriptors = body, descriptors
        self.answered.set()
        if not self.is_wanted:
            self.abandon()

    def abandon(self) -> None:
        """Discard the answer, whether or not it has arrived."""
        self.is_wanted = False
        close(self.descriptors)
        self.descriptors = []


class Launcher:
    """The client. `walls` is the sandbox support of this host.

    While the launcher does not answer, `silent_since` is the time at which the silence began, in
    nanoseconds since the epoch. Otherwise it is None. `watch` updates it.
    """

    walls = SandboxSupport(tools="", walls="", no_filter="")
    silent_since: int | None = None
    _probed: trio.Event | None = None  # set after the test of a bridge
    _no_bridge = ""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._channel.setblocking(False)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(NumberedReply)
        self._check = msgspec.msgpack.Decoder(NumberedRequest).decode
        self._numbers = itertools.cycle(range(2**32))
        self._waiting: dict[int, _Waiter] = {}
        self._errands = trio.Semaphore(MOST_ERRANDS, max_value=MOST_ERRANDS)
        most = MOST_OPEN - _PLACES_OF_CLIENTS
        self._free = trio.Semaphore(most, max_value=most)
        self._for_clients = trio.Semaphore(_PLACES_OF_CLIENTS, max_value=_PLACES_OF_CLIENTS)
        self._answers = 0  # answers received so far
        self._sending = trio.Lock()

    # --- responsiveness ---

    async def watch(self, now: Callable[[], int]) -> None:
        """Log when the launcher stops answering and when it answers again; run until cancelled.

        If the launcher is late with one answer but answers other requests, it counts as busy.
        """
        while True:
            await trio.sleep(_PING_EVERY)
            begun, answers = now(), self._answers
            with trio.move_on_after(_SILENT_AFTER) as wait:
                await self._ping()
            if wait.cancelled_caught and self._answers == answers:
                self.silent_since = begun
                _log.error("%s", self.unresponsive_message(now()))
                try:
                    await self._ping()
                finally:
                    self.silent_since = None
                silent = (now() - begun) // _SECOND
                _log.warning("the launcher answers again, after %d s", silent)

    async def _ping(self) -> None:
        """Send the shortest request, and wait until the launcher has answered it."""
        shortest = ListClaims(allocation=_NO_ALLOCATION)
        await self._request(shortest, places=[self._for_clients])

    def unresponsive_message(self, now: int) -> str:
        """Return a message about the silence of the launcher; empty if the launcher answers."""
        if self.silent_since is None:
            return ""
        seconds = max(0, now - self.silent_since) // _SECOND
        return (
            f"the launcher (process steward-launch) has not answered for {seconds} s: tasks "
            "cannot start or stop, and their files and logs are unavailable; the launcher is "
            "stopped, or a file system blocks it"
        )

    # --- requests ---

    async def start(
        self,
        request: StartTask,
        task_command: TaskCommand,
    ) -> tuple[int, int] | None:
        """Start the shim of a task; return its process ID and pidfd.

        None means that the attempt was started before. A start is completed even if the caller is
        cancelled. Raises `Refusal`, `OSError`, and `ValueError` for a value that exec cannot
        accept.
        """
        payload = self._sealed(task_command)
        try:
            # Reserve a descriptor, so that the shim can be watched even when the limit is reached.
            spare = os.dup(payload)
            with trio.CancelScope(shield=True):
                body, received = await self._request(request, [payload], spare)
        finally:
            os.close(payload)
        if isinstance(body, AlreadyStarted):
            return None
        assert isinstance(body, ProcessStarted)  # noqa: S101  # ensured by the protocol
        return body.pid, received[0]

    async def open_session(
        self, request: StartSession, task_command: TaskCommand
    ) -> tuple[int, list[int]]:
        """Run a command inside a task; return the session number and its descriptors.

        The first descriptor is the pidfd; then follow the ends of the command's streams. Raises the
        same errors as `start`, and `OSError` while the launcher does not answer.
        """
        if self.silent_since is not None:
            raise OSError(errno.EAGAIN, "the launcher does not answer")
        payload = self._sealed(task_command)
        try:
            spare = [os.dup(payload) for _ in range(2 if request.is_terminal else 4)]
            with trio.CancelScope(shield=True):
                body, received = await self._request(request, [payload], None, spare)
        finally:
            os.close(payload)
        assert isinstance(body, SessionOpened)  # noqa: S101  # ensured by the protocol
        return body.session, received

    async def start_program(
        self,
        program_command: ProgramCommand,
        content: bytes = b"",
        *,
        is_terminal: bool | None = None,
    ) -> tuple[int, list[int]]:
        """Run a client program of a cluster; return its session number and its descriptors.

        If `is_terminal` is None, the input of the program is `content`. Otherwise the input is a
        terminal (true) or a pipe (false). Raises the same errors as `open_session`.
        """
        if self.silent_since is not None:
            raise OSError(errno.EAGAIN, "the launcher does not answer")
        payloads = [self._sealed(program_command)]
        try:
            payloads += [self._sealed_file(content)] if is_terminal is None else []
            spare = [os.dup(payloads[0]) for _ in range(2 if is_terminal else 4)]
            request = StartProgram(is_terminal=bool(is_terminal))
            with trio.CancelScope(shield=True):
                body, received = await self._request(request, payloads, None, spare)
        finally:
            close(payloads)
        assert isinstance(body, SessionOpened)  # noqa: S101  # ensured by the protocol
        return body.session, received

    async def end_session(self, session: int, *, hang_up: bool = False) -> None:
        """Kill a session, or with `hang_up` send it SIGHUP. Raises `OSError`."""
        await self._request(EndSession(session=session, hang_up=hang_up))

    async def conclude(self, session: int) -> int:
        """Return the exit status of an ended session. Raises `OSError`.

        Return -1 if the status is unknown, or was returned before.
        """
        body, _ = await self._request(GetSessionExit(session=session))
        assert isinstance(body, SessionExit)  # noqa: S101  # ensured by the protocol
        return body.status

    async def probe_sandbox(self) -> None:
        """Detect the sandbox support of this host and store it in `walls`. Raises `OSError`."""
        body, _ = await self._request(ProbeSandbox())
        assert isinstance(body, SandboxSupport)  # noqa: S101  # ensured by the protocol
        self.walls = body

    async def why_no_bridge(self) -> str:
        """Return why this host cannot connect groups to a bridge, or an empty string.

        The bridge is tested once, and all calls share the result.
        """
        if self._probed is None:
            self._probed = trio.Event()
            try:
                body, _ = await self._request(ProbeBridge())
                assert isinstance(body, BridgeSupport)  # noqa: S101  # ensured by the protocol
                self._no_bridge = body.trouble
            except OSError as error:
                self._no_bridge = f"the test of a bridge failed: {error.strerror}"
            finally:
                self._probed.set()
        await self._probed.wait()
        return self._no_bridge

    async def probe_bridge(self, probing: trio.CancelScope) -> None:
        """Begin the test of the bridge early, within the cancel scope `probing`.

        A later call of `why_no_bridge` waits for the result of this test.
        """
        with probing:
            await self.why_no_bridge()

    @_patient
    async def connect_network(self, allocation: str, ports: list[ForwardedPort]) -> str:
        """Connect an allocation to the bridge if needed; return its bridge address.

        Raises `Refusal`, or `OSError`, with EADDRINUSE for a port in use.
        """
        body, _ = await self._request(ConnectNetwork(allocation=allocation, ports=ports))
        assert isinstance(body, NetworkConnected)  # noqa: S101  # ensured by the protocol
        return body.address

    @_patient
    async def release_network(self, allocation: str) -> None:
        """Release the network of an ended allocation.

        Raises `OSError`, including while a task is running.
        """
        await self._request(ReleaseNetwork(allocation=allocation))

    @_patient
    async def lay_out(
        self, allocation: str, layout: AllocDirLayout, previous: str | None = None
    ) -> dict[str, str]:
        """Create the directories of an allocation; return the errors by task.

        The result has only the tasks whose directory could not be created. `previous` is the
        replaced allocation; its data moves to the new allocation. Raises `OSError`.
        """
        payload = self._sealed(layout)
        try:
            request = CreateAllocDir(allocation=allocation, previous=previous)
            body, _ = await self._request(request, [payload])
        finally:
            os.close(payload)
        assert isinstance(body, LaidOut)  # noqa: S101  # both processes run the same version
        return body.troubles

    @_patient
    async def write(self, request: WriteFile, content: bytes) -> None:
        """Write a file that a task can access.

        Raises `OSError`, with EXDEV for a link that leads out of the directories of the task.
        """
        payload = self._sealed_file(content)
        try:
            await self._request(request, [payload])
        finally:
            os.close(payload)

    @_patient
    async def read(self, request: ReadFile) -> tuple[FileStatus, bytes]:
        """Return the metadata and the first bytes of a file. Raises `OSError` like `write`."""
        spare = os.memfd_create("spare") if request.most else None  # reserved as for a start
        body, received = await self._request(request, (), spare)
        assert isinstance(body, FileStatus)  # noqa: S101  # ensured by the protocol
        try:
            return body, b"".join(read_sealed(descriptor, request.most) for descriptor in received)
        finally:
            close(received)

    @_patient
    async def write_note(self, request: WriteNote) -> None:
        """Store or delete a note about a task. Raises `OSError`."""
        await self._request(request)

    @_patient
    async def recall(self, request: ReadNote) -> str | None:
        """Return the text of a note, or None. Raises `OSError`."""
        body, _ = await self._request(request)
        assert isinstance(body, NoteText)  # noqa: S101  # ensured by the protocol
        return body.text

    async def open(self, request: OpenFile) -> tuple[FileStatus, int | None]:
        """Return the metadata of a file, and its descriptor, or None if it may not be read.

        Raises `OSError`, with EXDEV for a path outside the allocation directory, and `SECRET` for a
        path that reveals secrets.
        """
        body, received = await self._request(request, (), os.memfd_create("spare"))
        assert isinstance(body, FileStatus)  # noqa: S101  # ensured by the protocol
        return body, received[0] if received else None

    async def entries(self, request: ListDirectory) -> tuple[list[DirectoryEntry], int]:
        """Return directory entries, starting at a position, and the next position.

        The next position is -1 at the end of the directory. Raises the same errors as `open`.
        """
        body, received = await self._request(request, (), os.memfd_create("spare"))
        assert isinstance(body, DirectoryPart)  # noqa: S101  # ensured by the protocol
        try:
            return read_record(received[0], MOST_PAYLOAD, _entries).entries, body.position
        finally:
            close(received)

    @_patient
    async def open_log(self, request: OpenLog) -> int:
        """Return a descriptor of a task's log. Raises `OSError`."""
        _, received = await self._request(request, (), os.memfd_create("spare"))
        return received[0]

    async def read_own(self, path: str) -> int:
        """Return a descriptor of a sealed copy of a configured certificate or key file.

        Raises `OSError`, including for a file that users other than root can change.
        """
        _, received = await self._request(ReadOwn(path=path), (), os.memfd_create("spare"))
        return received[0]

    async def retain_logs(self, allocation: str) -> None:
        """Retain the logs of an allocation. Raises `OSError`, including while a task is running."""
        await self._request(RetainLogs(allocation=allocation))

    async def remove(self, allocation: str, *, is_kept: bool = False) -> None:
        """Remove the directory of an allocation or, with `is_kept`, its retained logs.

        Raises the same errors as `retain_logs`.
        """
        await self._request(RemoveDirectory(allocation=allocation, is_kept=is_kept))

    async def create_volume(self, volume: str, mode: int, owner: tuple[int, int]) -> None:
        """Create the directory of a volume, or change its mode and owner. Raises `OSError`."""
        await self._request(MakeVolume(volume=volume, mode=mode, owner=owner))

    async def remove_volume(self, volume: str) -> None:
        """Delete the directory of a volume. This may take long. Raises `OSError`."""
        await self._request(RemoveVolume(volume=volume))

    async def measure(self, allocation: str, *, is_kept: bool = False) -> DirectoryUsage:
        """Return the disk usage of an allocation directory. Raises `OSError`.

        With `is_kept`, measure the retained logs instead. The measurement may take long.
        """
        body, _ = await self._request(MeasureDirectory(allocation=allocation, is_kept=is_kept))
        assert isinstance(body, DirectoryUsage)  # noqa: S101  # ensured by the protocol
        return body

    @_patient
    async def mount_secrets(self, allocation: str, task: str, megabytes: int) -> None:
        """Mount a tmpfs for the secrets of a task, if the launcher runs as root.

        Raises `OSError`.
        """
        await self._request(MountSecrets(allocation=allocation, task=task, megabytes=megabytes))

    async def reveal(self, allocation: str) -> None:
        """Delete and unmount the secrets of an allocation. Raises `OSError`."""
        await self._request(UnmountSecrets(allocation=allocation))

    async def unpack(self, request: UnpackStream, stream: int) -> None:
        """Unpack a stream into a directory of a task.

        Raises `OSError`, and `ValueError` for invalid entries.
        """
        await self._request(request, [stream])

    async def collect(self, request: CollectFiles, stream: int) -> None:
        """Find the files of a task that match patterns; write them to a pipe. Raises `OSError`."""
        await self._request(request, [stream])

    async def present(self, *, is_kept: bool = False) -> list[str]:
        """Return the allocations that have a directory or, with `is_kept`, retained logs.

        Raises `OSError`.
        """
        spare = os.memfd_create("spare")
        _, received = await self._request(ListAllocations(is_kept=is_kept), (), spare)
        try:
            return (
                b"".join(read_sealed(descriptor, MOST_PAYLOAD) for descriptor in received)
                .decode()
                .split()
            )
        finally:
            close(received)

    async def connect(self) -> trio.SocketStream:
        """Return a connection to root's podman. Raises `OSError`."""
        _, received = await self._request(ConnectPodman(), (), os.memfd_create("spare"))
        connection = socket.socket(fileno=received[0])
        return trio.SocketStream(trio.socket.from_stdlib_socket(connection))

    def _sealed(self, record: msgspec.Struct) -> int:
        """Write a record to a sealed file; return its descriptor.

        Raises `OSError` or `ValueError`.
        """
        content = self._encoder.encode(record)
        # An invalid record would stop the launcher, so check it here.
        msgspec.msgpack.decode(content, type=type(record))
        return self._sealed_file(content)

    def _sealed_file(self, content: bytes) -> int:
        if len(content) > MOST_PAYLOAD:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        return sealed(content)

    @_patient
    async def signal(self, request: SendSignal) -> bool:
        """Send a signal; return whether a process received it. Raises `OSError` or `ValueError`."""
        body, _ = await self._request(request)
        assert isinstance(body, SignalResult)  # noqa: S101  # ensured by the protocol
        return body.is_sent

    @_patient
    async def finish(self, request: FinishAttempt) -> EndedAttempt:
        """Return the claim of an attempt whose shim has ended. Raises `OSError`."""
        body, _ = await self._request(request)
        assert isinstance(body, EndedAttempt)  # noqa: S101  # ensured by the protocol
        return body

    @_patient
    async def adopt(self, request: FindAttempt) -> tuple[ClaimText, int | None]:
        """Return the claim of an attempt, and a pidfd of its shim if it is alive.

        Raises `OSError`.
        """
        spare = os.memfd_create("spare")  # reserved as for a start
        body, received = await self._request(request, (), spare)
        assert isinstance(body, ClaimText)  # noqa: S101  # ensured by the protocol
        return body, received[0] if received else None

    @_patient
    async def claims(self, request: ListClaims) -> list[tuple[str, int]]:
        """Return the task and the attempt number of each claim file. Raises `OSError`."""
        body, _ = await self._request(request)
        assert isinstance(body, ClaimList)  # noqa: S101  # ensured by the protocol
        return body.found

    @_patient
    async def end(self, request: KillAttempt) -> None:
        """Kill all processes in the cgroups of an attempt. Raises `OSError` or `ValueError`."""
        await self._request(request)

    @_patient
    async def sweep(self, request: ScanProcesses) -> list[list[int]]:
        """Scan for the processes of attempts and act on them.

        Return a list of process IDs for each target. Raises `OSError` or `ValueError`.
        """
        body, _ = await self._request(request)
        assert isinstance(body, ScanResult)  # noqa: S101  # ensured by the protocol
        return body.found

    async def usage(self, request: GetProcessInfo) -> list[str]:
        """Return the contents of the files `status` and `stat` of each process, alternating.

        Raises `OSError`.
        """
        spare = os.memfd_create("spare")
        _, received = await self._request(request, (), spare)
        try:
            text = b"".join(read_sealed(descriptor, MOST_PAYLOAD) for descriptor in received)
        finally:
            close(received)
        return text.decode(errors="replace").split("\0") if text else []

    # --- transport ---

    async def _request(
        self,
        request: Request,
        descriptors: Sequence[int] = (),
        spare: int | None = None,
        more: Sequence[int] = (),
        places: Sequence[trio.Semaphore] = (),
    ) -> tuple[Answer, list[int]]:
        """Send a request with `descriptors`; return the answer and its descriptors.

        `spare` and `more` are open descriptors, which are closed to free their numbers for the
        descriptors of the answer. `places` are the semaphores that limit pending requests, by
        default those for the type of the request. Raises `OSError`, and `ValueError` for a request
        that the protocol does not allow.
        """
        spares = [*more] if spare is None else [spare, *more]
        waiter = _Waiter(spares, places or self._places(request))
        try:
            longest = self._longest_wait(request)
            with trio.move_on_after(longest) if longest < float("inf") else nullcontext():
                await self._send(request, descriptors, waiter)
                await waiter.answered.wait()
        except BaseException:  # also when cancelled: the answer will still arrive
            waiter.abandon()
            raise
        finally:
            waiter.make_room()
        if not waiter.answered.is_set():
            waiter.abandon()
            raise LauncherSilent(f"the launcher has not answered within {PATIENCE:.0f} s")
        if waiter.body is None:
            raise LauncherGone
        return answer_of(waiter.body, waiter.descriptors)

    def _places(self, request: Request) -> list[trio.Semaphore]:
        """Return the semaphores that limit pending requests of this type.

        Short requests of clients have a separate limit. Otherwise, slow requests could use up the
        common limit and block the short ones.
        """
        is_of_client = longest_wait() < float("inf") and not isinstance(request, _SLOW)
        free = self._for_clients if is_of_client else self._free
        return [self._errands, free] if isinstance(request, _ERRANDS) else [free]

    def _longest_wait(self, request: Request) -> float:
        """Return the timeout of a request in seconds.

        Raises `LauncherSilent` if the launcher is known to be silent.
        """
        patience = longest_wait()
        if self.silent_since is not None and patience < float("inf"):
            raise LauncherSilent("the launcher does not answer")
        return float("inf") if isinstance(request, _SLOW) else patience

    async def _send(self, request: Request, descriptors: Sequence[int], waiter: _Waiter) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        await waiter.open()  # closed by `_take`
        try:
            number = next(self._numbers)
            question = NumberedRequest(number=number, descriptors=len(descriptors), body=request)
            data = self._encoder.encode(question)
            self._check(data)  # an invalid message would stop the launcher
            # Requests that already wait to be sent come first.
            if self._sending.locked() or not self._is_sent(data, descriptors):
                async with self._sending:
                    while not self._is_sent(data, descriptors):
                        await trio.lowlevel.wait_writable(self._channel)
            self._waiting[number] = waiter
        except BaseException:  # also when cancelled: there will be no answer
            waiter.close()
            raise

    def _is_sent(self, data: bytes, descriptors: Sequence[int]) -> bool:
        try:
            send(self._channel, data, descriptors)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            raise LauncherGone from None
        return True

    async def run(self, reading: trio.CancelScope) -> None:
        """Deliver answers until the scope is cancelled. Raises `LauncherGone`."""
        try:
            with reading:
                while True:
                    await trio.lowlevel.wait_readable(self._channel)
                    while self._take():
                        pass
        finally:
            for waiter in self._waiting.values():
                waiter.answered.set()

    def _take(self) -> bool:
        """Handle the next answer; return whether there was an answer. Raises `LauncherGone`."""
        try:
            # Peek first: a request that expects a descriptor has reserved a number for it.
            data = self._channel.recv(LONGEST, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            raise LauncherGone
        reply = self._decoder.decode(data)
        waiter = self._waiting.pop(reply.number)
        waiter.make_room()
        body, descriptors = reply.body, list[int]()
        try:
            _, descriptors = receive(self._channel)
        except DescriptorsLost as error:  # a thread took the number that was free
            body = OperationFailed(number=errno.EMFILE, text=str(error.strerror))
        self._answers += 1
        waiter.close()
        waiter.deliver(body, descriptors)
        return True


def answer_of(body: Answer, descriptors: list[int]) -> tuple[Answer, list[int]]:
    """Return an answer with its descriptors.

    An answer that reports a failure raises `OSError` or `ValueError`.
    """
    if isinstance(body, RefusedReply):
        raise Refusal(body.text)
    if isinstance(body, OperationFailed):
        raise OSError(body.number, body.text) if body.number else ValueError(body.text)
    return body, descriptors


def probe_sandbox(channel: socket.socket) -> SandboxSupport:
    """Return the sandbox support of this host, before a `Launcher` runs.

    Raises the same errors as `send_hello`.
    """
    body = _ask_blocking(channel, ProbeSandbox())
    assert isinstance(body, SandboxSupport)  # noqa: S101  # both processes run the same version
    return body


def send_hello(channel: socket.socket, directory: Path, policy: LauncherPolicy) -> HelloReply:
    """Send the first request: the directory of allocations, and the policy.

    Wait until no other launcher uses the directory. Raises `OSError` or `LauncherGone`.
    """
    payload = sealed(msgspec.msgpack.encode(policy))
    try:
        body = _ask_blocking(channel, Hello(version=VERSION, directory=str(directory)), payload)
    finally:
        os.close(payload)
    assert isinstance(body, HelloReply)  # noqa: S101  # both processes run the same version
    return body


def _ask_blocking(channel: socket.socket, request: Request, *descriptors: int) -> Answer:
    """Send a request before a `Launcher` runs, and return the answer.

    Blocks the thread. Raises `OSError` or `LauncherGone`.
    """
    channel.setblocking(True)
    question = NumberedRequest(number=0, descriptors=len(descriptors), body=request)
    try:
        send(channel, msgspec.msgpack.encode(question), descriptors)
        data, received = receive(channel)
    except ConnectionError:
        raise LauncherGone from None
    if not data:
        raise LauncherGone
    return answer_of(msgspec.msgpack.decode(data, type=NumberedReply).body, received)[0]


@asynccontextmanager
async def open_launcher(channel: socket.socket) -> AsyncIterator[Launcher]:
    """Yield a running client; the launcher has already answered `send_hello`."""
    with channel:
        launcher = Launcher(channel)
        async with trio.open_nursery() as nursery:
            # Cancelled callers may have to clean up, so answers are read until all have ended.
            reading, probing = trio.CancelScope(shield=True), trio.CancelScope()
            nursery.start_soon(launcher.run, reading)
            try:
                await launcher.probe_sandbox()
                nursery.start_soon(launcher.probe_bridge, probing)
                yield launcher
            finally:
                probing.cancel()
                reading.cancel()
