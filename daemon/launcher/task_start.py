"""Start tasks and exec sessions: check the `TaskCommand`, build the command line, and run it.

The daemon only describes the requirements of the job. All arguments of programs that run as root
are built here: the shim, the sandbox, and the change of the user.
"""

import fcntl
import os
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import msgspec

from daemon.launcher import alloc_dir, cgroups, sandbox, task_files
from daemon.launcher.bridge import Bridge
from daemon.launcher.channel import Refusal
from daemon.launcher.claims_and_logs import (
    LOGS,
    SHARED,
    below,
    drop_claim,
    open_log,
    read_claim,
    shim_of,
    shims,
    take_claim,
)
from daemon.launcher.command_lookup import CommandFile, find, find_in_session
from daemon.launcher.command_lookup import below as below_one_of
from daemon.launcher.hardening import supports_filters
from daemon.launcher.messages import (
    LauncherPolicy,
    SandboxSupport,
    StartSession,
    StartTask,
    TaskCommand,
    WriteFile,
)
from daemon.launcher.networks import Networks
from daemon.launcher.root_programs import run
from daemon.launcher.safe_open import CODE, ODD
from daemon.launcher.shim_script import FILTER, command_line, find_tools
from daemon.launcher.user_policy import OWN_HOME, User, UserPolicy, being

NO_GROUP = "-"  # `StartTask.group` of a task without a cgroup
_NULL = "/dev/null"
_OUT, _CLAIM, _ERR = 1, 2, 3  # descriptors of a shim, in addition to the filter
_ASIDE = 16  # lowest number for descriptors that are not passed by number to a child
_WITHIN = 10  # seconds for a test of the sandbox
_TERMINAL = "xterm"  # the default TERM of a terminal in a task
_DISABLED = "raw_exec is off: set raw_exec = true in the agent's configuration, or use exec"
_NO_SECCOMP = "the kernel has no system call filters (CONFIG_SECCOMP_FILTER)"
_NO_NETWORK = "raw_exec can deny a task the network only if the agent is root; use exec"
# Python and the daemon's parent may ignore signals; tasks get the default actions.
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
Line = tuple[list[str], dict[str, str]]  # arguments and variables


class PreparedCommand(msgspec.Struct, frozen=True):
    """A command line with its working directory and user.

    `namespaces` has a pair for each namespace that the command enters first: the descriptor of the
    namespace, and the number of that descriptor in the child.
    """

    line: Line
    working_directory: int
    user: User | None
    namespaces: Mapping[str, tuple[int, int]]


def of_new_session() -> dict[str, Any]:
    """Return the arguments of `posix_spawn` for a session without the launcher's own settings.

    The process gets the default actions of signals, and the usual scheduling policy.
    """
    is_batch = os.sched_getscheduler(0) == os.SCHED_BATCH
    scheduler = {"scheduler": (os.SCHED_OTHER, os.sched_param(0))} if is_batch else {}
    return {"setsid": True, "setsigmask": (), "setsigdef": _SIGNALS, **scheduler}


class Starter:
    """Starts tasks and exec sessions, as far as the policy permits."""

    def __init__(self, policy: LauncherPolicy, directory: str, users: UserPolicy) -> None:
        self._policy, self._directory, self._users = policy, directory, users
        self._volumes = {volume.name: volume for volume in policy.volumes}
        self.tools = find_tools()
        # The daemon raises its own limit; tasks get the original limit.
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        bridge = Bridge(policy.bridge, self.tools) if policy.bridge else None
        self.networks = Networks(bridge)
        self._support: SandboxSupport | None = None  # the result of the last test

    # --- starts ---

    def start(self, request: StartTask, task: TaskCommand) -> tuple[int, int] | None:
        """Start the shim of an attempt; return its process ID and pidfd.

        Return None if the attempt was started before.

        Raises `OSError` or `ValueError`.
        """
        with below(self._directory, request.allocation) as folder, ExitStack() as stack:
            claim = take_claim(folder, request.task, request.attempt)
            if claim is None:
                return None
            stack.callback(os.close, claim)
            try:
                prepared = self._prepared(request, task, folder, stack)
            except Refusal:
                drop_claim(folder, request.task, request.attempt)
                raise
            for file, content in task.files:
                self.write(file, content)
            outputs = _outputs(folder, request, stack)
            os.ftruncate(claim, 0)
            keeps = f"logs {request.keeps}\n" if request.is_logged and request.keeps else ""
            os.write(claim, f"group {request.group}\n{keeps}".encode())
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, _NULL, os.O_RDONLY, 0),
                *((os.POSIX_SPAWN_DUP2, *pair) for pair in zip(outputs, (_OUT, _ERR), strict=True)),
                (os.POSIX_SPAWN_DUP2, claim, _CLAIM),
            ]
            pid = self._spawn(prepared, task, request.allocation, folder, actions)
            started = pid, os.pidfd_open(pid)
            if request.attempt:
                drop_claim(folder, request.task, request.attempt - 1)
            return started

    def write(self, request: WriteFile, content: bytes) -> None:
        """Write a file for a task. Raises `Refusal` or `OSError`."""
        if request.owner is not None:
            self._users.check_owner(request.owner)
        task_files.write(self._directory, request, content)

    def open_session(
        self, request: StartSession, task: TaskCommand, shim: int | None
    ) -> tuple[int, list[int]]:
        """Start a command inside a task; return its process ID, its pidfd, and its open streams.

        The daemon gets the ends of a terminal, or of standard input, output and error. `shim` is
        the shim of the attempt if the launcher is its parent. Raises the same errors as `start`.
        """
        with below(self._directory, request.allocation) as folder, ExitStack() as stack:
            own = shim
            shim = own or shim_of(folder, request.task, request.attempt)
            if shim is None:
                raise Refusal(sandbox.NOT_THERE)
            prepared = self._prepared(request, task, folder, stack, shim)
            if not own and shim_of(folder, request.task, request.attempt) != shim:
                raise Refusal(sandbox.NOT_THERE)  # the process ID may have been reused
            flags = os.O_NOCTTY if prepared.namespaces else 0  # leaders inside take the terminal
            own_ends, actions = ends(prepared.user, stack, flags, is_terminal=request.is_terminal)
            pid = self._spawn(prepared, task, request.allocation, folder, actions)
            copies = [os.dup(descriptor) for descriptor in own_ends]
            return pid, [os.pidfd_open(pid), *copies]

    # --- checks and command lines ---

    def _prepared(
        self,
        request: StartTask | StartSession,
        task: TaskCommand,
        folder: int,
        stack: ExitStack,
        shim: int | None = None,
    ) -> PreparedCommand:
        """Return the command line. With `shim`, the command runs inside the task of this shim.

        Raises `Refusal`, `OSError` or `ValueError`.
        """
        if not (self.tools.sh and self.tools.setsid and self.tools.env):
            raise Refusal("a program that tasks need is missing: sh, setsid or env")
        if request.task == SHARED:
            raise Refusal("a task cannot have the name of the shared directory")
        self._check_entries(request, task, folder)
        if task.driver == "raw_exec" and not self._policy.runs_raw_exec:
            raise Refusal(_DISABLED)
        if task.filter != "default" and not self._policy.opens_filters:
            raise Refusal("exec_unfiltered is off, so no task may relax its system call filter")
        user = self._users.of_task(task.driver, task.user, request.allocation)
        if user is not None and not self.tools.setpriv:
            raise Refusal("the program setpriv is missing: tasks cannot change their user")
        home = stack.enter_context(below(folder, request.task))
        path = f"{self._directory}/{request.allocation}/{request.task}"
        env = _environment(task, user)
        if is_terminal := isinstance(request, StartSession) and request.is_terminal:
            env.setdefault("TERM", _TERMINAL)
        command = [*map(os.fsdecode, (task.command, *task.args))]
        wrap: list[str] = []
        namespaces: dict[str, tuple[int, int]] = {}
        if task.driver == "exec":
            if problem := self.probe().walls:
                raise Refusal(problem)
            cwd, becomes = home, None
            env |= {} if shim else {"PWD": task.work_dir or OWN_HOME}
            if shim is None:
                wrap = self._sandbox(request, task, command, env, user, folder, home, stack)
            else:
                namespaces = sandbox.opened(shim, user, stack, alone=self._is_alone(task))
                has_filter = bool(self._filter(task))
                wrap = sandbox.enter_arguments(
                    self.tools, task, user, namespaces, filtered=has_filter, is_terminal=is_terminal
                )
        else:
            cwd, becomes = self._raw_exec(task, command, env, user, home, path, stack, shim), user
        line = command_line(
            self.tools,
            command,
            env,
            shim_dir=path,
            entry="\n".join(task.entries),
            open_files=self._open_files,
            data=task.data,
            user=becomes,
            wrap=wrap,
            inside=shim is not None,
            apart=bool(namespaces) or (user is not None and os.geteuid() == 0),
            closed=[number for _, number in namespaces.values()],
        )
        return PreparedCommand(line, cwd, user, namespaces)

    def _check_entries(
        self, request: StartTask | StartSession, task: TaskCommand, folder: int
    ) -> None:
        """Raise `Refusal` for a cgroup of another task, or if a required cgroup is missing."""
        above, names = self._policy.groups, (request.allocation, request.task)
        text, _ = read_claim(folder, request.task, request.attempt)
        started_in = cgroups.claimed(text, *names)  # possibly by a daemon with other cgroups
        for path in filter(None, task.entries):
            if not cgroups.is_list(path, above, *names, started_in):
                raise Refusal(f"{path!r} is not the process list of a control group of the task")
        is_exec = task.driver == "exec"
        needed = self._policy.exec_groups if is_exec else self._policy.raw_exec_groups
        # A session enters the cgroups of its task, regardless of the current policy.
        if isinstance(request, StartSession):
            needed = [group for group in needed if cgroups.is_made(group, *names)] + [*started_in]
        elif request.group != (os.path.dirname(next(iter(task.entries), "")) or NO_GROUP):
            raise Refusal(f"the first cgroup of the task is not {request.group}")
        for controller in needed:
            if not any(entry.startswith(f"{controller}/") for entry in task.entries):
                raise Refusal(f"the task would not enter its cgroup of the controller {controller}")

    def _raw_exec(
        self,
        task: TaskCommand,
        words: list[str],
        env: dict[str, str],
        user: User | None,
        home: int,
        path: str,
        stack: ExitStack,
        shim: int | None,
    ) -> int:
        """Replace the command `words[0]` of a raw_exec task by the path of its executable.

        Return a descriptor of the working directory. Raises `Refusal`.
        """
        if task.volumes:
            raise Refusal("raw_exec has no sandbox: use exec to mount volumes")
        working_directory = home
        with _as(user):
            if task.work_dir:
                try:
                    working_directory = os.open(
                        task.work_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=home
                    )
                except OSError:
                    reason = f'working directory "{task.work_dir}" does not exist'
                    raise Refusal(reason) from None
                stack.callback(os.close, working_directory)
            directory = task.work_dir or path
            env.setdefault("PWD", directory)
            if shim is not None:
                words[0] = find_in_session(words[0], directory, env.get("PATH"))
            else:
                own = [f"{path}/local/{words[0]}", f"{path}/{words[0]}"]
                files = [CommandFile(own_path, own_path) for own_path in own]
                words[0] = find(
                    words[0], files, env.get("PATH"), lambda file: CommandFile(file, file), user
                )
        return working_directory

    def _sandbox(
        self,
        request: StartTask | StartSession,
        task: TaskCommand,
        words: list[str],
        env: Mapping[str, str],
        user: User | None,
        folder: int,
        home: int,
        stack: ExitStack,
    ) -> list[str]:
        """Return the arguments that build the sandbox of an exec task.

        Replace the command `words[0]` by the path of its executable. Raises `Refusal`.
        """
        # No other user may replace directories that are mounted into the sandbox.
        if os.geteuid() == 0:
            top = alloc_dir.made(folder, request.task, None, alloc_dir.own_ids(), is_handed_on=True)
            stack.enter_context(top)
        mounts = sandbox.volumes(task, self._volumes, self._policy.volume_roots, stack)
        opened = [(mount.path, mount.descriptor) for mount in mounts]
        for inside, outside in sandbox.OWN.items():
            above, names = (folder, [SHARED]) if outside == f"../{SHARED}" else (home, [outside])
            opened.append((inside, stack.enter_context(below(above, *names))))

        def find_file(path: str) -> CommandFile | None:
            is_system = path.startswith(tuple(f"{directory}/" for directory in sandbox.SYSTEM))
            return below_one_of(path, opened) or (CommandFile(path, path) if is_system else None)

        file = find_file(f"{OWN_HOME}/{words[0]}")
        with _as(user):
            words[0] = find(words[0], [file] if file else [], env.get("PATH"), find_file, user)
        return sandbox.around(
            self.tools,
            task,
            mounts,
            user,
            folder=folder,
            task=request.task,
            filtered=bool(self._filter(task)),
            alone=self._is_alone(task),
        )

    @staticmethod
    def _is_alone(task: TaskCommand) -> bool:
        """Return whether the sandbox itself must isolate a task from the network."""
        return task.network == "none" and os.geteuid() != 0

    def _filter(self, task: TaskCommand) -> bytes:
        """Return the system call filter of a task; empty if it has none."""
        if task.driver == "raw_exec" or task.filter == "off" or self.probe().no_filter:
            return b""
        by_kind = {"default": self._policy.filter, "namespaces": self._policy.wide_filter}
        return by_kind[task.filter]

    def _spawn(
        self,
        prepared: PreparedCommand,
        task: TaskCommand,
        allocation: str,
        folder: int,
        actions: Sequence[tuple[object, ...]],
    ) -> int:
        command, env = prepared.line
        with (
            _readable(self._filter(task)) as filtered,
            self._network(task, allocation, folder),
            _in_directory(prepared.working_directory),
            ExitStack() as stack,
        ):
            more = [(os.POSIX_SPAWN_DUP2, filtered, FILTER)] if filtered else []
            for descriptor, number in prepared.namespaces.values():
                # Duplicated to a high number, so that no descriptor overwrites another.
                copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
                stack.callback(os.close, copy)
                more.append((os.POSIX_SPAWN_DUP2, copy, number))
            return os.posix_spawn(
                command[0],
                command,
                env,
                file_actions=[*actions, *more],
                **of_new_session(),
            )

    def _network(
        self, task: TaskCommand, allocation: str, folder: int
    ) -> AbstractContextManager[None]:
        """Return a context manager: processes started in its block are in the task's network.

        Raises `Refusal` or `OSError`.
        """
        if task.network == "host":
            return nullcontext()
        if os.geteuid() == 0 or task.network == "bridge":
            is_connected = task.network == "bridge"
            return self.networks.inside(allocation, shims(folder), is_connected=is_connected)
        if task.driver == "raw_exec":
            raise Refusal(_NO_NETWORK)
        return nullcontext()  # the sandbox isolates each task separately

    # --- sandbox support ---

    def probe(self) -> SandboxSupport:
        """Test whether tasks and sandboxes work on this host; return the reasons if they do not.

        The next call repeats a failed test, because its cause may be temporary.
        """
        if self._support is None:
            result = self._probe()
            if result.walls:
                return result
            self._support = result
        return self._support

    def _probe(self) -> SandboxSupport:
        shell, walls = self._missing("sh", "setsid", "env"), ""
        if missing := self._missing("bwrap", "nsenter", "setpriv", "stat"):
            walls = f"{missing} (package bubblewrap)"
        elif problem := self._try(b""):
            walls = f"this host does not allow a sandbox: {problem}"
        no_filter = self._policy.no_filter or ("" if supports_filters() else _NO_SECCOMP)
        if not (walls or no_filter) and (problem := self._try(self._policy.filter)):
            if self._policy.is_dev:
                no_filter = problem
            else:
                walls = f"this host does not allow a system call filter: {problem}"
        return SandboxSupport(tools=shell, walls=walls, no_filter="" if walls else no_filter)

    def _missing(self, *names: str) -> str:
        """Return the error for the programs that this host lacks; empty if it has them all."""
        missing = [name for name in names if not getattr(self.tools, name)]
        return f"programs are missing on this host: {', '.join(missing)}" if missing else ""

    def _try(self, program: bytes) -> str:
        """Build a sandbox like a task's sandbox, with the filter `program`, which may be empty.

        Return the error, or an empty string.
        """
        command = [self.tools.bwrap, *(["--seccomp", str(FILTER)] if program else [])]
        command += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--ro-bind", "/", "/"]
        command += ["--proc", "/proc", "--dev", "/dev", "--", self.tools.setpriv, "--version"]
        with _readable(program) as filtered:
            descriptors = [(filtered, FILTER)] if filtered else []
            try:
                status, output = run(command, descriptors=descriptors, seconds=_WITHIN)
            except TimeoutError:
                return f"no sandbox within {_WITHIN} s"
            return (output or f"exit status {status}") if status else ""


def _environment(task: TaskCommand, user: User | None) -> dict[str, str]:
    """Return a task's variables; HOME, USER and LOGNAME are set for the task's user."""
    env = {name.decode(CODE, ODD): value.decode(CODE, ODD) for name, value in task.env.items()}
    if user is not None:
        personal = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
        env |= {name: personal[name] for name in task.personal}
    return env


def _as(user: User | None) -> AbstractContextManager[None]:
    return being(user.owner, user.groups) if user else nullcontext()


def _outputs(folder: int, request: StartTask, stack: ExitStack) -> list[int]:
    """Return descriptors for standard output and error, which `stack` closes."""
    opened = list[int]()
    with below(folder, SHARED, LOGS) if request.is_logged else nullcontext() as logs:
        for kind in ("stdout", "stderr"):
            name = f"{request.task}.{kind}.0"
            opened.append(os.open(_NULL, os.O_WRONLY) if logs is None else open_log(logs, name))
            stack.callback(os.close, opened[-1])
    return opened


def ends(
    user: User | None, stack: ExitStack, flags: int = 0, *, is_terminal: bool
) -> tuple[list[int], list[tuple[object, ...]]]:
    """Create a terminal, or three pipes, for the standard streams of a command.

    Return the daemon's ends, and the file actions that give the command its ends. `stack` closes
    all ends. The child opens the terminal with `flags`.
    """

    def pair(ends: tuple[int, int]) -> tuple[int, int]:
        for end in ends:
            stack.callback(os.close, end)
        return ends

    if is_terminal:
        master, slave = pair(os.openpty())
        os.fchown(slave, user.uid if user else os.geteuid(), -1)
        # Without O_NOCTTY, a session leader makes the terminal its controlling terminal.
        opened = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR | flags, 0)
        return [master], [opened, *((os.POSIX_SPAWN_DUP2, 0, descriptor) for descriptor in (1, 2))]
    (reader, writer), out, err = (pair(os.pipe()) for _ in range(3))
    child_ends = (reader, out[1], err[1])
    return [writer, out[0], err[0]], [
        (os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(child_ends)
    ]


@contextmanager
def _in_directory(descriptor: int) -> Iterator[None]:
    """Change the working directory for the block, because children inherit it."""
    os.fchdir(descriptor)
    try:
        yield
    finally:
        os.chdir("/")


@contextmanager
def _readable(program: bytes) -> Iterator[int | None]:
    """Yield a descriptor from which a filter can be read; None without a filter."""
    if not program:
        yield None
        return
    descriptor = os.memfd_create("filter")
    try:
        os.pwrite(descriptor, program, 0)
        yield descriptor
    finally:
        os.close(descriptor)
