"""The server of the launcher: one thread that reads a message, checks it, performs it and answers.

A malformed message stops the launcher and therefore the daemon. If an operation is not permitted or
fails, the answer has the reason.
"""

import errno
import fcntl
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from daemon.launcher import (
    alloc_dir,
    alloc_removal,
    cgroups,
    child_processes,
    log_guard,
    messages,
    process_scan,
    readable_files,
    secrets_tmpfs,
    task_files,
    unpacker,
    volumes,
)
from daemon.launcher.alloc_uids import AllocUids
from daemon.launcher.channel import (
    DescriptorsLost,
    ProtocolViolation,
    Refusal,
    close,
    read_record,
    read_sealed,
    receive,
    sealed,
    send,
)
from daemon.launcher.child_processes import ChildOperation, ChildOperations
from daemon.launcher.claims_and_logs import attempts, below, is_held, read_claim, shims
from daemon.launcher.disk_usage import DiskUsageScan
from daemon.launcher.exec_sessions import ExecSessions
from daemon.launcher.shims import Key, Shims
from daemon.launcher.task_start import Starter
from daemon.launcher.user_policy import UserPolicy

Given = tuple[messages.Answer, list[int]]  # an answer and its descriptors

LOCK = ".launcher"  # in the directory of all allocations; locked by the running launcher
_EXIT_WRONG = 1
_QUICK, _LONG = 60, 24 * 3600  # time limits of operations in seconds
_COLLECTION = 1800  # seconds, because the end of a task waits for it
_layout = msgspec.msgpack.Decoder(messages.AllocDirLayout)
_policy = msgspec.msgpack.Decoder(messages.LauncherPolicy)
_task_command = msgspec.msgpack.Decoder(messages.TaskCommand)
_program = msgspec.msgpack.Decoder(messages.ProgramCommand)


class Server:
    """The server: the state of one launcher process and a handler for each request type."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._decoder = msgspec.msgpack.Decoder(messages.NumberedRequest)
        self._encoder = msgspec.msgpack.Encoder()
        self._errands = ChildOperations(channel)
        self._sessions = ExecSessions()
        self._shims = Shims(self._child_ended, self._errands.kill_stopped, self._sessions.end_group)
        # The directory of all allocations; empty before `Hello`.
        self._directory, self._lock = "", -1
        self._groups: frozenset[str] = frozenset()  # parent cgroups of tasks

    def run(self) -> int:
        """Serve until the daemon closes its end of the channel; return the exit status."""
        bell, ringer = os.pipe()
        for descriptor in (bell, ringer):
            os.set_blocking(descriptor, False)
        # The handler does not interrupt `poll`; the byte in the wakeup pipe does.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        waits = select.poll()
        waits.register(self._channel, select.POLLIN)
        waits.register(bell, select.POLLIN)
        try:
            while True:
                remaining = self._sessions.kill_late(time.monotonic())
                wait = None if remaining is None else math.ceil(1000 * remaining)
                ready = [descriptor for descriptor, _ in waits.poll(wait)]
                if bell in ready:
                    os.read(bell, 4096)
                    self._shims.reap()
                if self._channel.fileno() in ready and not self._serve_one():
                    return 0
        except ProtocolViolation as error:
            write_log(f"malformed message, so the launcher stops: {error}")
            return _EXIT_WRONG
        except (BrokenPipeError, ConnectionResetError):  # the daemon ended before the answer
            return 0

    def limit_logs(self) -> None:
        """Limit the logs of running tasks until the next launcher starts.

        Call this after the daemon has ended.
        """
        if self._lock < 0:
            return
        signal.set_wakeup_fd(-1)
        self._channel.close()
        self._starter.networks.close()
        os.close(self._lock)
        log_guard.limit_logs(self._directory, f"{self._directory}/{LOCK}")
        with suppress(OSError):  # the next launcher updates the bridge
            self._starter.networks.update_bridge()

    def _serve_one(self) -> bool:
        """Answer the next request; return whether there was a request.

        Raises `ProtocolViolation` or `OSError`.
        """
        try:
            data, descriptors = receive(self._channel)
        except DescriptorsLost as error:
            self._reply(self._decoded(error.data).number, child_processes.failure(error))
            return True
        if not data:
            return False
        try:
            question = self._decoded(data)
            reply = self._answer(question, descriptors)
            if isinstance(reply, ChildOperation):
                if (failed := self._errands.begin(question.number, reply)) is None:
                    return True
                reply = failed, []
        finally:
            close(descriptors)
        body, passed = reply
        try:
            self._reply(question.number, body, passed)
        finally:
            close(passed)
        return True

    def _decoded(self, data: bytes) -> messages.NumberedRequest:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolViolation(str(error)) from None

    def _reply(self, number: int, body: messages.Answer, passed: Sequence[int] = ()) -> None:
        reply = messages.NumberedReply(number=number, descriptors=len(passed), body=body)
        send(self._channel, self._encoder.encode(reply), passed)

    def _child_ended(self, pid: int, status: int) -> None:
        """Answer the request of an ended child, or record the exit status of a session."""
        self._sessions.record_exit(pid, status)
        if reply := self._errands.end(pid, status):
            self._reply(*reply)

    def _answer(
        self, question: messages.NumberedRequest, descriptors: Sequence[int]
    ) -> Given | ChildOperation:
        kind = type(question.body)
        record_type, handler = _TABLE[kind]
        if question.descriptors != len(descriptors) or len(descriptors) not in record_type:
            raise ProtocolViolation(f"{kind.__name__} came with {len(descriptors)} descriptors")
        if bool(self._directory) == (kind is messages.Hello):
            raise ProtocolViolation(f"{kind.__name__} came at the wrong time")
        try:
            return handler(self, question.body, *descriptors)
        except Refusal as error:
            write_log(f"{kind.__name__} is refused: {error}")
            return messages.RefusedReply(text=str(error)), []
        except (OSError, ValueError) as error:  # `ValueError`: a value that exec cannot accept
            return child_processes.failure(error), []

    # --- requests ---

    def answer_hello(self, request: messages.Hello, descriptor: int) -> Given:
        """Lock the directory of allocations; wait until an earlier launcher has ended."""
        if request.version != messages.VERSION:
            raise ProtocolViolation(
                f"the version of the protocol is {request.version}, not {messages.VERSION}"
            )
        self.allow(read_record(descriptor, messages.MOST_PAYLOAD, _policy), request.directory)
        alloc_dir.make_root(request.directory)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        # The descriptor stays open, and so locked, until the daemon ends.
        self._lock = os.open(f"{request.directory}/{LOCK}", flags, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if (span := self._own_uids) is not None and os.geteuid() == 0:
            self._users.uids = AllocUids(request.directory, span)
        try:
            self._starter.networks.update_bridge()
        except OSError as error:
            write_log(f"cannot update the bridge: {error}")
        return messages.HelloReply(is_root=os.geteuid() == 0), []

    def allow(self, policy: messages.LauncherPolicy, directory: str) -> None:
        """Apply a policy for a directory of allocations."""
        self._directory, self._users = directory, UserPolicy(policy)
        self._own_uids = policy.own_uids
        self._starter = Starter(policy, directory, self._users)
        self._policy, self._groups = policy, frozenset(policy.groups)

    def start(self, request: messages.StartTask, sent: int) -> Given:
        """Start a shim; `sent` is a sealed file with the task's command."""
        payload = read_record(sent, messages.MOST_PAYLOAD, _task_command)
        started = self._starter.start(request, payload)
        if started is None:
            return messages.AlreadyStarted(), []
        pid, descriptor = started
        self._shims.register(_key(request), pid)
        return messages.ProcessStarted(pid=pid), [descriptor]

    def open_session(self, request: messages.StartSession, sent: int) -> Given:
        """Start a command inside a task; `sent` is a sealed file with the command."""
        payload = read_record(sent, messages.MOST_PAYLOAD, _task_command)
        own = self._shims.pid_of(_key(request))
        pid, descriptors = self._starter.open_session(request, payload, own)
        is_nested = request.is_terminal and payload.driver == "exec"
        number = self._sessions.register(pid, is_nested=is_nested)
        return messages.SessionOpened(session=number), descriptors

    def start_program(self, request: messages.StartProgram, sent: int, *more: int) -> Given:
        """Start a client program of a cluster, or a notification command.

        `sent` is a sealed file with the command. `more` can have a sealed file with the input.
        """
        from daemon.launcher import programs  # imported late, because few daemons start programs

        payload = read_record(sent, messages.MOST_PAYLOAD, _program)
        has_limit = payload.program != "srun"
        if has_limit and self._sessions.bounded >= messages.MOST_PROGRAMS:
            raise OSError(errno.EAGAIN, f"{messages.MOST_PROGRAMS} programs are running")
        pid, descriptors = programs.start(
            self._policy,
            self._starter.tools,
            self._users,
            payload,
            more,
            is_terminal=request.is_terminal,
        )
        deadline = time.monotonic() + programs.SECONDS if has_limit else None
        return messages.SessionOpened(session=self._sessions.register(pid, deadline)), descriptors

    def end_session(self, request: messages.EndSession) -> Given:
        """Kill an exec session."""
        self._sessions.kill(request.session, hang_up=request.hang_up)
        return messages.Done(), []

    def conclude(self, request: messages.GetSessionExit) -> Given:
        """Return the exit status of an exec session."""
        self._shims.reap()
        return messages.SessionExit(status=self._sessions.take_status(request.session)), []

    def probe_sandbox(self, _: messages.ProbeSandbox) -> Given:
        """Return the sandbox support of this host."""
        return self._starter.probe(), []

    def probe_bridge(self, _: messages.ProbeBridge) -> ChildOperation:
        """Return whether this host can connect allocations to a bridge."""

        def work() -> messages.Answer:
            return messages.BridgeSupport(trouble=self._starter.networks.why_no_bridge())

        return ChildOperation(work, _QUICK)

    def connect_network(self, request: messages.ConnectNetwork) -> Given:
        """Connect the network of an allocation to the bridge."""
        with below(self._directory, request.allocation) as folder:
            address = self._starter.networks.connect(
                request.allocation, request.ports, shims(folder)
            )
        return messages.NetworkConnected(address=address), []

    def release_network(self, request: messages.ReleaseNetwork) -> Given:
        """Release the network of an allocation without a running task."""
        alloc_removal.check(self._directory, request.allocation)
        self._starter.networks.release(request.allocation)
        return messages.Done(), []

    def lay_out(self, request: messages.CreateAllocDir, descriptor: int) -> Given:
        """Create the directories of an allocation."""
        layout = read_record(descriptor, messages.MOST_PAYLOAD, _layout)
        if self._users.uids is not None and request.previous is not None:
            alloc_removal.check(self._directory, request.previous)
            self._users.uids.inherit(request.allocation, request.previous)
        owners = [
            self._users.owner(task.driver, task.user, request.allocation) for task in layout.rooms
        ]
        problems = alloc_dir.lay_out(
            self._directory,
            request.allocation,
            request.previous,
            layout,
            owners,
            self._users.guest,
        )
        return messages.LaidOut(troubles=problems), []

    def write(self, request: messages.WriteFile, descriptor: int) -> Given:
        """Write a file for a task."""
        self._starter.write(request, read_sealed(descriptor, messages.MOST_PAYLOAD))
        return messages.Done(), []

    def read(self, request: messages.ReadFile) -> Given:
        """Return the metadata and content of a file."""
        facts, content = task_files.read(self._directory, request)
        return facts, [sealed(content)] if request.most else []

    def write_note(self, request: messages.WriteNote) -> Given:
        """Store a note about a task."""
        task_files.write_note(self._directory, request)
        return messages.Done(), []

    def recall(self, request: messages.ReadNote) -> Given:
        """Return the text of a note."""
        return messages.NoteText(text=task_files.recall(self._directory, request)), []

    def open_file(self, request: messages.OpenFile) -> Given:
        """Open a file that is not secret."""
        return readable_files.open_file(self._directory, request)

    def list(self, request: messages.ListDirectory) -> Given:
        """Return the entries of a directory."""
        entries, position = readable_files.entries(self._directory, request)
        record = self._encoder.encode(messages.DirectoryEntries(entries=entries))
        return messages.DirectoryPart(position=position), [sealed(record)]

    def connect(self, _: messages.ConnectPodman) -> Given:
        """Connect to root's podman, if permitted."""
        if not self._policy.podman:
            raise Refusal("podman_root is off")
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            client.connect(self._policy.podman)
            return messages.Done(), [client.detach()]

    def open_log(self, request: messages.OpenLog) -> Given:
        """Open a log."""
        return messages.Done(), [readable_files.open_a_log(self._directory, request)]

    def read_own(self, request: messages.ReadOwn) -> Given:
        """Return the content of a configured certificate or key file."""
        if request.path not in self._policy.files:
            raise Refusal(
                f"{request.path!r} was not configured as a certificate file when the daemon started"
            )
        return messages.Done(), [sealed(readable_files.read_own(request.path))]

    def signal(self, request: messages.SendSignal) -> Given:
        """Signal the main process of an attempt, or its shim."""
        with self._folder(request.allocation) as folder:
            is_sent = self._shims.signal(
                folder,
                _key(request),
                request.signal,
                is_walled=request.is_walled,
                to_shim=request.to_shim,
            )
        return messages.SignalResult(is_sent=is_sent), []

    def finish(self, request: messages.FinishAttempt) -> Given:
        """Return the claim of an ended attempt."""
        status = self._shims.take_status(_key(request))
        with self._folder(request.allocation) as folder:
            text, at, logs, outputs = b"", 0, None, None
            if folder is not None:
                text, at = read_claim(folder, request.task, request.attempt)
                logs = readable_files.log_sizes(folder, request.task)
                if (outputs_file := request.outputs) and outputs_file.most <= messages.MOST_OUTPUTS:
                    # After an error, the daemon requests the file separately and gets the reason.
                    with suppress(OSError):
                        outputs = task_files.read(self._directory, outputs_file)[1]
        ended = messages.EndedAttempt(claim=text, at=at, status=status, logs=logs, outputs=outputs)
        return ended, []

    def retain_logs(self, request: messages.RetainLogs) -> ChildOperation:
        """Retain the logs of an allocation."""
        alloc_removal.check(self._directory, request.allocation)

        def work() -> messages.Answer:
            alloc_removal.retain_logs(self._directory, self._logs, request.allocation)
            return messages.Done()

        return ChildOperation(work, _QUICK)

    def remove(self, request: messages.RemoveDirectory) -> ChildOperation:
        """Remove a directory."""
        if not request.is_kept:
            alloc_removal.check(self._directory, request.allocation)
            alloc_removal.hide(self._directory, request.allocation)

        def work() -> messages.Answer:
            if request.is_kept:
                alloc_removal.remove(self._logs, request.allocation)
            for name in (f"{request.allocation}{alloc_removal.GONE}", request.allocation):
                if not request.is_kept:
                    self._empty(name)
                    alloc_removal.remove(self._directory, name)
            return messages.Done()

        return ChildOperation(work, _LONG, after=lambda: self._release(request.allocation))

    def _release(self, allocation: str) -> None:
        """Release the user ID and the network of a removed allocation."""
        try:
            if self._users.uids is not None:
                self._users.uids.release(allocation)
            if allocation in self._starter.networks:
                self._starter.networks.release(allocation)
        except OSError as error:
            write_log(f"cannot release the uid or the network of allocation {allocation}: {error}")

    def create_volume(self, request: messages.MakeVolume) -> Given:
        """Create the directory of a volume."""
        if request.owner != (-1, -1):
            self._users.check_owner(request.owner)
        volumes.make(self._volumes, request.volume, request.mode, request.owner)
        return messages.Done(), []

    def remove_volume(self, request: messages.RemoveVolume) -> ChildOperation:
        """Delete the directory of a volume."""

        def work() -> messages.Answer:
            volumes.remove(self._volumes, request.volume)
            return messages.Done()

        return ChildOperation(work, _LONG)

    def measure(self, request: messages.MeasureDirectory) -> ChildOperation:
        """Return the disk usage of a directory."""

        def work() -> messages.Answer:
            with below(self._root_of(request), request.allocation) as top:
                measuring = DiskUsageScan(top)
                measuring.run()
            return messages.DirectoryUsage(used=measuring.used, written=measuring.written)

        return ChildOperation(work, _LONG)

    def mount_secrets(self, request: messages.MountSecrets) -> ChildOperation:
        """Mount a tmpfs for secrets, if the launcher runs as root."""

        def work() -> messages.Answer:
            if os.geteuid() == 0:
                secrets_tmpfs.step_over(self._directory)
                secrets_tmpfs.mount_secrets(
                    self._directory, request.allocation, request.task, request.megabytes
                )
            return messages.Done()

        return ChildOperation(work, _QUICK)

    def reveal(self, request: messages.UnmountSecrets) -> ChildOperation:
        """Delete and unmount secrets."""

        def work() -> messages.Answer:
            self._empty(request.allocation)
            return messages.Done()

        return ChildOperation(work, _QUICK)

    def _empty(self, name: str) -> None:
        """Delete and unmount the secrets below the directory `name`, in a child process."""
        if os.geteuid() == 0:
            secrets_tmpfs.step_over(self._directory)
            secrets_tmpfs.reveal(self._directory, name)

    def unpack(self, request: messages.UnpackStream, descriptor: int) -> ChildOperation:
        """Unpack a stream into a directory of a task."""
        top, user = unpacker.find(self._directory, request)

        def work() -> messages.Answer:
            with open(descriptor, "rb", closefd=False) as stream:
                unpacker.unpack(top, request, stream)
            return messages.Done()

        return ChildOperation(work, _LONG, user, after=lambda: os.close(top))

    def collect(self, request: messages.CollectFiles, descriptor: int) -> ChildOperation:
        """Send the files of a task that match patterns to the daemon."""
        # Imported late, because few tasks have files to keep. Imported before the child exists,
        # because the child runs as the task's user and may not read modules.
        from daemon.launcher import file_collector

        descriptors, user = file_collector.find(self._directory, request)

        def work() -> messages.Answer:
            with open(descriptor, "wb", closefd=False) as stream:
                file_collector.collect(descriptors, request, stream)
            return messages.Done()

        return ChildOperation(work, _COLLECTION, user, after=lambda: close([*descriptors.values()]))

    def present(self, request: messages.ListAllocations) -> Given:
        """Return the names of the existing directories in a sealed file, one per line."""
        return messages.Done(), [
            sealed("\n".join(alloc_removal.present(self._root_of(request))).encode())
        ]

    def _root_of(self, request: messages.MeasureDirectory | messages.ListAllocations) -> str:
        return self._logs if request.is_kept else self._directory

    @property
    def _logs(self) -> str:
        """Return the directory of retained logs."""
        return f"{os.path.dirname(self._directory)}/logs"

    @property
    def _volumes(self) -> str:
        """Return the directory of API-created volumes."""
        return f"{os.path.dirname(self._directory)}/volumes"

    def adopt(self, request: messages.FindAttempt) -> Given:
        """Return the claim of an attempt, and a pidfd of its shim if it is alive."""
        text, at, is_claimed, pidfds = b"", 0, False, []
        with self._folder(request.allocation) as folder:
            with self._shims.opened(folder, _key(request)) as shim:
                pidfds += [os.dup(shim[1])] if shim else []
            if folder is not None:
                is_claimed = is_held(folder, request.task, request.attempt)
                text, at = read_claim(folder, request.task, request.attempt)
        return messages.ClaimText(text=text, at=at, is_held=is_claimed or bool(pidfds)), pidfds

    def claims(self, request: messages.ListClaims) -> Given:
        """Return the attempts of an allocation that have claims."""
        with self._folder(request.allocation) as folder:
            return messages.ClaimList(found=[] if folder is None else attempts(folder)), []

    def end(self, request: messages.KillAttempt) -> Given:
        """Kill all processes in the cgroups of an attempt."""
        for group in self._groups_of(request):
            cgroups.kill(group)
        return messages.Done(), []

    def _groups_of(self, request: messages.KillAttempt | messages.GetProcessInfo) -> set[str]:
        """Return the possible cgroups of an attempt."""
        groups = cgroups.of_task(self._groups, request.allocation, request.task)
        if request.attempt is not None:
            with self._folder(request.allocation) as folder:
                if folder is not None:
                    text, _ = read_claim(folder, request.task, request.attempt)
                    # Only launchers write claims, this one or an earlier one.
                    groups |= cgroups.claimed(text, request.allocation, request.task)
        return groups

    def usage(self, request: messages.GetProcessInfo) -> Given:
        """Return process information of an attempt."""
        pids = [int(tid) for group in self._groups_of(request) for _, tid in cgroups.threads(group)]
        if not pids:
            names = (request.allocation, request.task, request.attempt)
            mark = messages.ScanTarget(
                allocation=names[0], task=names[1], attempt=names[2], action="find"
            )
            (pids,) = process_scan.sweep(self._directory, [mark])
        return messages.Done(), [
            sealed(b"\0".join(process_scan.facts(pids[: messages.MOST_USING])))
        ]

    def sweep(self, request: messages.ScanProcesses) -> Given:
        """Scan for the processes of attempts and apply the requested action to them."""
        return messages.ScanResult(found=process_scan.sweep(self._directory, request.marks)), []

    @contextmanager
    def _folder(self, allocation: str) -> Iterator[int | None]:
        """Yield a descriptor of an allocation directory; None if the directory was removed.

        Raises `OSError`.
        """
        with ExitStack() as resources:
            try:
                folder = resources.enter_context(below(self._directory, allocation))
            except (FileNotFoundError, NotADirectoryError):
                folder = None
            yield folder


def _key(
    request: messages.StartTask
    | messages.StartSession
    | messages.SendSignal
    | messages.FinishAttempt
    | messages.FindAttempt,
) -> Key:
    return request.allocation, request.task, request.attempt


def write_log(text: str) -> None:
    """Write one escaped line to the daemon's log."""
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    # The launcher has no other log.
    print(f"steward: launcher: {line}", file=sys.stderr, flush=True)  # noqa: T201


# The number of descriptors and the handler of each request type.
_TABLE: dict[type[messages.Message], tuple[range, Callable[..., Given | ChildOperation]]] = {
    messages.Hello: (range(1, 2), Server.answer_hello),
    messages.StartTask: (range(1, 2), Server.start),
    messages.StartSession: (range(1, 2), Server.open_session),
    messages.StartProgram: (range(1, 3), Server.start_program),
    messages.EndSession: (range(1), Server.end_session),
    messages.GetSessionExit: (range(1), Server.conclude),
    messages.ProbeSandbox: (range(1), Server.probe_sandbox),
    messages.ProbeBridge: (range(1), Server.probe_bridge),
    messages.ConnectNetwork: (range(1), Server.connect_network),
    messages.ReleaseNetwork: (range(1), Server.release_network),
    messages.CreateAllocDir: (range(1, 2), Server.lay_out),
    messages.SendSignal: (range(1), Server.signal),
    messages.FinishAttempt: (range(1), Server.finish),
    messages.WriteFile: (range(1, 2), Server.write),
    messages.ReadFile: (range(1), Server.read),
    messages.WriteNote: (range(1), Server.write_note),
    messages.ReadNote: (range(1), Server.recall),
    messages.OpenFile: (range(1), Server.open_file),
    messages.ListDirectory: (range(1), Server.list),
    messages.OpenLog: (range(1), Server.open_log),
    messages.ReadOwn: (range(1), Server.read_own),
    messages.ConnectPodman: (range(1), Server.connect),
    messages.RetainLogs: (range(1), Server.retain_logs),
    messages.RemoveDirectory: (range(1), Server.remove),
    messages.MeasureDirectory: (range(1), Server.measure),
    messages.ListAllocations: (range(1), Server.present),
    messages.FindAttempt: (range(1), Server.adopt),
    messages.ListClaims: (range(1), Server.claims),
    messages.KillAttempt: (range(1), Server.end),
    messages.ScanProcesses: (range(1), Server.sweep),
    messages.MountSecrets: (range(1), Server.mount_secrets),
    messages.UnpackStream: (range(1, 2), Server.unpack),
    messages.CollectFiles: (range(1, 2), Server.collect),
    messages.UnmountSecrets: (range(1), Server.reveal),
    messages.MakeVolume: (range(1), Server.create_volume),
    messages.RemoveVolume: (range(1), Server.remove_volume),
    messages.GetProcessInfo: (range(1), Server.usage),
}
