"""The messages between daemon and launcher.

Messages are MessagePack arrays that begin with the type number. The decoder rejects unknown types,
extra fields and wrong types. Both processes run the same version of Steward, so the protocol needs
no compatibility. `VERSION` only detects that the versions differ.
"""

import errno
from typing import Annotated, Literal

import msgspec

VERSION = 1
MOST_OPEN = 64  # pending requests
MOST_ERRANDS = 8  # maximum number of concurrent long operations among these
MOST_PROGRAMS = 64  # concurrent programs that have a time limit
MOST_MARKS = 128  # targets of one scan
MOST_PIDS = 8192  # processes in the answer for one target
MOST_USING = 512  # processes in one usage report
MOST_TEXT = 4096  # characters of a name or path
MOST_PORTS = 1024  # ports of an allocation on the bridge
MOST_PATTERNS = 32  # patterns of files to keep, per task
MOST_OUTPUTS = 16 * 1024  # bytes of a task's outputs in the answer to `FinishAttempt`
MOST_PAYLOAD = 4 * 1024 * 1024  # bytes; the kernel uses half of it for arguments and environment
SECRET = errno.ENOKEY  # error for a path that reveals secrets

Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Count = Annotated[int, msgspec.Meta(ge=0, le=8)]
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
Line = Annotated[str, msgspec.Meta(pattern=r"\A[^\n\x00]{1,4096}\Z")]
Server = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,64})?\Z")]
Domain = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,254}\Z")]
Option = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9:-]{1,64}\Z")]
ID = r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z"
Id = Annotated[str, msgspec.Meta(pattern=ID)]  # allocation ID
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
Address = Annotated[str, msgspec.Meta(pattern=rf"\A({_BYTE}\.){{3}}{_BYTE}\Z")]  # IPv4 address
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_PAYLOAD)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # bytes, or a number of files
Rights = Annotated[int, msgspec.Meta(ge=0, le=0o777)]
# Kind of a note: the accessor of the Vault token, the marker of downloaded artifacts, and the pending
# change actions of templates, identities and Vault tokens.
Kind = Literal["token", "fetched", "changed", "renewed", "replaced"]
Action = Literal["find", "hold", "let_go", "end"]  # an action on processes
Uid = Annotated[int, msgspec.Meta(ge=-1, lt=2**32 - 1)]
Owner = tuple[Uid, Uid]  # user ID and group ID; -1 and -1 mean unknown users
# The rule for a task's user: the rule of a driver, any user of a container's image ("anybody"), or
# the launcher's own user ("ours").
Whose = Literal["raw_exec", "exec", "anybody", "ours"]
Span = tuple[Number, Number]  # first and last number of a range
NAME = r"\A[^./\x00][^/\x00]{0,254}\Z"
Name = Annotated[str, msgspec.Meta(pattern=NAME)]  # task name


class Message(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """The base of all messages: arrays without extra fields."""


# --- requests ---


class Hello(Message, frozen=True, kw_only=True, tag=1):
    """The first request, sent once. `directory` is the directory of all allocations.

    Descriptor: a sealed `LauncherPolicy`.
    """

    version: int
    directory: Text


class AllowedVolume(Message, frozen=True, kw_only=True):
    """A host directory that tasks may mount by name."""

    name: Text
    path: Text
    read_only: bool


class BridgePolicy(Message, frozen=True, kw_only=True):
    """The bridge of allocations: its name, its subnet, and its rules as text for `nft`.

    `table` is the name of the table of these rules. `closing` has additional rules for a host that
    otherwise forwards no packets. No port of the host in `kept_ports` is forwarded.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9_-]{0,14}\Z")]
    table: Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9_-]{0,30}\Z")]
    subnet: Address
    bits: Annotated[int, msgspec.Meta(ge=16, le=29)]
    rules: Text
    closing: Text
    kept_ports: list[Span]


class LauncherPolicy(Message, frozen=True, kw_only=True):
    """The permissions from the configuration, fixed for the lifetime of the launcher.

    `owner` is the daemon's user; tasks may run as this user only if `users` names it. `users` are
    the permitted users of tasks: names, IDs, groups after `@`, or `*` for all except root. `usual`
    is the default user for raw_exec; empty means the launcher's own user. `denied` are users who
    must not run tasks of the drivers in `checked`.

    `own_uids` are the user IDs for allocations whose tasks name no user. `processes` is the limit
    on processes per task, 0 for no limit; `holds_raw_exec` enables limits for raw_exec. `groups`
    are the parent cgroups of tasks. A task of raw_exec must enter a cgroup below each of
    `raw_exec_groups`, and a task of exec a cgroup below each of `exec_groups`.

    `podman` is the socket of root's podman; empty if the podman of the daemon's user runs
    containers. `filter` is the system call filter for exec, `wide_filter` the filter that permits
    namespaces, and `no_filter` the reason if filters are unavailable. Volumes that are not
    configured are below `volume_roots`. `files` are certificates and their keys. `programs` are the
    client programs of clusters with their paths. They may use the configuration files in
    `cluster_configs`. `commands` are the notification commands by name, each with its arguments.
    """

    owner: Number
    is_dev: bool
    users: list[Text]
    usual: Text
    permits_root: bool
    denied: list[Text]
    checked: list[Text]
    denied_uids: list[Span]
    denied_gids: list[Span]
    own_uids: Span | None
    runs_raw_exec: bool
    opens_filters: bool
    volumes: list[AllowedVolume]
    processes: Number
    holds_raw_exec: bool
    groups: list[Line]
    raw_exec_groups: list[Line]
    exec_groups: list[Line]
    filter: bytes
    wide_filter: bytes
    no_filter: str
    volume_roots: list[Text]
    podman: Text = ""
    files: list[Text] = []
    programs: dict[Text, Text] = {}
    cluster_configs: list[Text] = []
    commands: dict[Text, list[str]] = {}
    bridge: BridgePolicy | None = None


class StartTask(Message, frozen=True, kw_only=True, tag=2):
    """Start the shim of an attempt, unless the attempt was started before.

    Descriptor: a sealed `TaskCommand`. `group` is the first cgroup of the task, or `-` for none.
    The claim records this cgroup, so that processes can be found again. Without `is_logged` the
    output of the task is discarded. While no daemon runs, each log keeps its last `keeps` bytes; 0
    means that it keeps all bytes.
    """

    allocation: Id
    task: Name
    attempt: Number
    group: Line
    is_logged: bool
    keeps: Number = 0


class SendSignal(Message, frozen=True, kw_only=True, tag=3):
    """Send a signal to the main process of an attempt or to its shim.

    A shim only receives SIGCONT, or SIGKILL when no process is left below it. `is_walled` means
    that the main process is in a sandbox. If the attempt has ended, no process is signalled. As
    long as the main process is still a shell that prepares the task, it only receives SIGKILL.
    """

    allocation: Id
    task: Name
    attempt: Number
    signal: Name
    is_walled: bool
    to_shim: bool


class WriteFile(Message, frozen=True, kw_only=True, tag=21):
    """Write a file for a task, and create its parent directories.

    Descriptor: a sealed file with the content. `path` begins with the name of the task or of the
    shared directory. With `is_new`, an existing file is kept. If `owner` is None, the task's user
    owns the file.
    """

    allocation: Id
    task: Name
    path: Text
    mode: Rights
    is_new: bool
    owner: Owner | None


class ReadFile(Message, frozen=True, kw_only=True, tag=22):
    """Return the metadata of a file of an allocation, and its first `most` bytes."""

    allocation: Id
    task: Name
    path: Text
    most: Bytes


class FinishAttempt(Message, frozen=True, kw_only=True, tag=4):
    """Return the claim of an attempt whose shim has ended.

    The exit status of the shim is returned only once. `outputs` names the outputs file of the task,
    if the task has such a file.
    """

    allocation: Id
    task: Name
    attempt: Number
    outputs: ReadFile | None = None


class DnsSettings(Message, frozen=True, kw_only=True):
    """DNS settings of a task; each text becomes a word in resolv.conf."""

    servers: list[Server]
    searches: list[Domain]
    options: list[Option]


class MountedVolume(Message, frozen=True, kw_only=True):
    """A volume: its name in the task group, and its path in the task.

    `volume` is its name in the configuration. Volumes that are not configured have a `path`.
    """

    name: Text
    volume: Text
    path: Text
    destination: Text
    read_only: bool


class TaskCommand(Message, frozen=True, kw_only=True):
    """The command of a task, as its job defines it.

    `personal` lists the variables that the launcher sets from the account of the task's user.
    `entries` are the files through which the task enters its cgroups. The first file belongs to
    the cgroup by which the launcher kills the task; it is empty without such a cgroup. `data` is
    RLIMIT_DATA in KiB, 0 for no limit. Each of `files` is written before the start, with its
    content.
    """

    driver: Literal["raw_exec", "exec"]
    user: Text
    command: bytes
    args: list[bytes]
    work_dir: Text
    env: dict[bytes, bytes]
    personal: list[Literal["HOME", "USER", "LOGNAME"]]
    volumes: list[MountedVolume]
    network: Literal["host", "none", "bridge"]
    dns: DnsSettings | None
    filter: Literal["default", "namespaces", "off"]
    entries: list[Text]
    data: Number
    files: list[tuple[WriteFile, bytes]] = []


class ForwardedPort(Message, frozen=True, kw_only=True):
    """The host port `value` at `address`; its connections go to the allocation's port `to`."""

    address: Address
    value: Port
    to: Port


class ConnectNetwork(Message, frozen=True, kw_only=True, tag=12):
    """Connect the network of an allocation to the bridge if needed, and forward its ports."""

    allocation: Id
    ports: Annotated[list[ForwardedPort], msgspec.Meta(max_length=MOST_PORTS)]


class ProbeBridge(Message, frozen=True, kw_only=True, tag=14):
    """Test whether this host can connect allocations to the bridge."""


class ReleaseNetwork(Message, frozen=True, kw_only=True, tag=13):
    """Release the network of an ended allocation."""

    allocation: Id


class StartSession(Message, frozen=True, kw_only=True, tag=8):
    """Run a command inside a running attempt, in the task's context.

    Descriptor: a sealed `TaskCommand` with the command.
    """

    allocation: Id
    task: Name
    attempt: Number
    is_terminal: bool


class EndSession(Message, frozen=True, kw_only=True, tag=9):
    """Kill a session with its process group, or send SIGHUP to the whole session."""

    session: Number
    hang_up: bool


class GetSessionExit(Message, frozen=True, kw_only=True, tag=10):
    """Return the exit status of a session."""

    session: Number


class ProbeSandbox(Message, frozen=True, kw_only=True, tag=11):
    """Test which sandbox features this host supports."""


class CreateAllocDir(Message, frozen=True, kw_only=True, tag=20):
    """Create the directories of an allocation; migrate the data of an ended allocation to it.

    Descriptor: a sealed `AllocDirLayout`.
    """

    allocation: Id
    previous: Id | None


class TaskDirLayout(Message, frozen=True, kw_only=True):
    """The directory of a task.

    `driver` and `user` determine its owner; `is_seen` means that the task can see it.
    """

    task: Name
    driver: Whose
    user: Text
    is_seen: bool


class AllocDirLayout(Message, frozen=True, kw_only=True):
    """The directories of the tasks, and the description of the logs."""

    rooms: list[TaskDirLayout]
    about: bytes


class WriteNote(Message, frozen=True, kw_only=True, tag=23):
    """Store or delete a note about a task."""

    allocation: Id
    task: Name
    kind: Kind
    text: Annotated[str, msgspec.Meta(max_length=1024)] | None


class ReadNote(Message, frozen=True, kw_only=True, tag=24):
    """Return the text of a note."""

    allocation: Id
    task: Name
    kind: Kind


class OpenFile(Message, frozen=True, kw_only=True, tag=50):
    """Open a file in an allocation directory for reading; an empty `path` opens that directory.

    Of the internal files, only the description of the logs is accessible. With `sees_secrets`, the
    metadata of secrets is returned. Their files are never opened.
    """

    allocation: Id
    path: Text
    sees_secrets: bool


class ListDirectory(Message, frozen=True, kw_only=True, tag=51):
    """Return the entries of a directory, starting at a position; the first position is 0."""

    allocation: Id
    path: Text
    sees_secrets: bool
    position: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class OpenLog(Message, frozen=True, kw_only=True, tag=52):
    """Open a log of a task for reading or for rotation; for rotation, create it if needed."""

    allocation: Id
    task: Name
    kind: Literal["stdout", "stderr"]
    purpose: Literal["log", "rotate"]


class RetainLogs(Message, frozen=True, kw_only=True, tag=25):
    """Retain the logs of an ended allocation, so that they survive the removal of its directory."""

    allocation: Id


class RemoveDirectory(Message, frozen=True, kw_only=True, tag=26):
    """Remove the directory of an ended allocation or, with `is_kept`, its retained logs."""

    allocation: Id
    is_kept: bool


class MeasureDirectory(Message, frozen=True, kw_only=True, tag=27):
    """Return the disk usage of an allocation directory or of retained logs."""

    allocation: Id
    is_kept: bool


class MountSecrets(Message, frozen=True, kw_only=True, tag=60):
    """Mount a tmpfs of this size in MiB for a task's secrets, unless the directory has files."""

    allocation: Id
    task: Name
    megabytes: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class UnmountSecrets(Message, frozen=True, kw_only=True, tag=61):
    """Delete and unmount the secrets of an allocation."""

    allocation: Id


class UnpackStream(Message, frozen=True, kw_only=True, tag=62):
    """Unpack a stream into a task's directory.

    `daemon/launcher/unpacker.py` describes the format of the stream.

    Descriptor: the stream. `path` begins with a directory of the task, or with `alloc/data`.
    """

    allocation: Id
    task: Name
    path: Text
    most_bytes: Size
    most_members: Size


class ArchiveMember(Message, frozen=True, kw_only=True):
    """An entry of the stream of `UnpackStream`, with the size of a file or the target of a link."""

    path: bytes
    kind: Literal["folder", "file", "link"]
    mode: Rights
    size: Size
    target: bytes


class CollectFiles(Message, frozen=True, kw_only=True, tag=63):
    """Send the files of a task that match patterns; see `daemon/launcher/file_collector.py`.

    Descriptor: the end of a pipe for the stream. A pattern begins with the name of the task or of
    the shared directory. `most_bytes` limits each file, and `most_total` limits all files together.
    A sparse file counts with its apparent size.
    """

    allocation: Id
    task: Name
    patterns: Annotated[list[Text], msgspec.Meta(max_length=MOST_PATTERNS)]
    most_bytes: Size
    most_total: Size
    most_files: Size


class FilePart(Message, frozen=True, kw_only=True):
    """A part of a file in the stream of `CollectFiles`.

    `path` is relative to the allocation directory.

    The last part of a file has `is_end`, and a `reason` if the file cannot be collected. A `reason`
    without a path is about a pattern, or about all files.
    """

    path: bytes
    data: bytes
    is_end: bool
    reason: str


class ListAllocations(Message, frozen=True, kw_only=True, tag=28):
    """Return the allocations that have a directory or, with `is_kept`, retained logs."""

    is_kept: bool


class FindAttempt(Message, frozen=True, kw_only=True, tag=30):
    """Return the claim of an attempt, and whether its shim is alive."""

    allocation: Id
    task: Name
    attempt: Number


class ListClaims(Message, frozen=True, kw_only=True, tag=31):
    """Return the attempts of an allocation that have claims."""

    allocation: Id


class KillAttempt(Message, frozen=True, kw_only=True, tag=32):
    """Kill all processes in the cgroups of a task.

    If `attempt` is not None, also kill the processes in the cgroup that the claim of the
    attempt names.
    """

    allocation: Id
    task: Name
    attempt: Number | None


class GetProcessInfo(Message, frozen=True, kw_only=True, tag=34):
    """Return process information of an attempt, if the kernel hides it from the daemon.

    The answer carries a sealed file: the contents of the files `status` and `stat` of each process,
    each terminated by NUL.
    """

    allocation: Id
    task: Name
    attempt: Number


class ScanTarget(Message, frozen=True, kw_only=True):
    """The processes to select, and the action to apply. If `task` is None, select all tasks."""

    allocation: Id
    task: Name | None
    attempt: Number | None
    action: Action


class ScanProcesses(Message, frozen=True, kw_only=True, tag=33):
    """Scan all processes of the host, and act on the processes of attempts."""

    marks: Annotated[list[ScanTarget], msgspec.Meta(max_length=MOST_MARKS)]


class MakeVolume(Message, frozen=True, kw_only=True, tag=70):
    """Create the directory of a volume, or change its mode and owner.

    If both numbers of the owner are -1, the launcher is the owner.
    """

    volume: Id
    mode: Rights
    owner: Owner


class RemoveVolume(Message, frozen=True, kw_only=True, tag=71):
    """Delete the directory of a volume with all its files."""

    volume: Id


class ConnectPodman(Message, frozen=True, kw_only=True, tag=53):
    """Connect to root's podman."""


class ReadOwn(Message, frozen=True, kw_only=True, tag=54):
    """Return the content of one of the policy's `files`, in a sealed file.

    The operation fails if a user other than root or the launcher's user can change the file.
    """

    path: Text


class ProgramCommand(Message, frozen=True, kw_only=True):
    """A program of a cluster with its arguments; see `daemon/launcher/programs.py`.

    The program `notify` is a notification command; its only argument is the name of that command.
    An empty `user` means the daemon's user. `config` is the cluster's configuration file, if it is
    not the default. `env` are variables of a job. `command` is the command that `srun` runs in a
    job, and `terminal` is the value of its variable TERM.
    """

    program: Literal["sbatch", "squeue", "scancel", "srun", "sinfo", "scontrol", "notify"]
    user: Text
    args: list[Annotated[str, msgspec.Meta(pattern=r"\A[^\n\x00]{0,131072}\Z")]]
    config: Text = ""
    env: dict[Text, str] = {}
    command: list[bytes] = []
    terminal: Annotated[str, msgspec.Meta(pattern=r"\A[^\x00]{0,64}\Z")] = ""


class StartProgram(Message, frozen=True, kw_only=True, tag=80):
    """Start a program. It runs until it exits, its time limit passes or `EndSession` kills it.

    Descriptors: a sealed `ProgramCommand`, and optionally a sealed file with its input.
    """

    is_terminal: bool


# --- answers ---


class HelloReply(Message, frozen=True, kw_only=True, tag=1):
    """The answer to `Hello`."""

    is_root: bool


class ProcessStarted(Message, frozen=True, kw_only=True, tag=2):
    """A process was started; the answer carries its pidfd."""

    pid: Number


class AlreadyStarted(Message, frozen=True, kw_only=True, tag=4):
    """The attempt already has a shim, or had one."""


class Done(Message, frozen=True, kw_only=True, tag=5):
    """The operation succeeded and has no result."""


class EndedAttempt(Message, frozen=True, kw_only=True, tag=6):
    """The claim text of an ended attempt, and its modification time in nanoseconds.

    `status` is the exit status of its shim, or -1 if this launcher has not seen it end. `logs` are
    the sizes of its logs in bytes, standard output first. `outputs` are the first bytes of the
    task's outputs file. If `logs` or `outputs` is None, the daemon must send a separate request.
    """

    claim: bytes
    at: int
    status: int
    logs: tuple[int, int] | None = None
    outputs: bytes | None = None


class OperationFailed(Message, frozen=True, kw_only=True, tag=3):
    """The operation failed, with an errno and a message; errno 0 means an invalid value."""

    number: Number
    text: str


class SessionOpened(Message, frozen=True, kw_only=True, tag=8):
    """A command was started in a task.

    The answer carries the pidfd of the command, and the daemon's end of its terminal or of its
    three pipes.
    """

    session: Number


class SessionExit(Message, frozen=True, kw_only=True, tag=10):
    """The exit status of a session: 128 plus N after signal N, and -1 if the status is unknown."""

    status: int


class SandboxSupport(Message, frozen=True, kw_only=True, tag=11):
    """The reasons why tasks, sandboxes or the filter do not work on this host; empty if they do."""

    tools: str
    walls: str
    no_filter: str


class NetworkConnected(Message, frozen=True, kw_only=True, tag=12):
    """The address of an allocation on the bridge."""

    address: Address


class BridgeSupport(Message, frozen=True, kw_only=True, tag=14):
    """The reason why this host cannot connect allocations to a bridge; empty if it can."""

    trouble: str


class RefusedReply(Message, frozen=True, kw_only=True, tag=7):
    """The operation is not permitted or not possible; the text is for the caller."""

    text: str


class LaidOut(Message, frozen=True, kw_only=True, tag=20):
    """The directories were created, except those of the listed tasks."""

    troubles: dict[str, str]


class FileStatus(Message, frozen=True, kw_only=True, tag=22):
    """The metadata of a file; times in nanoseconds.

    If the file may be read, the answer carries a descriptor: the file itself, or a sealed file with
    the requested bytes. `is_secret` means that the file may not be read because it is secret.
    """

    inode: int
    size: int
    modified: int
    mode: int
    is_secret: bool = False


class DirectoryPart(Message, frozen=True, kw_only=True, tag=51):
    """Some entries of a directory, and the next position, which is -1 after the last entry.

    The answer carries a sealed `DirectoryEntries`.
    """

    position: int


class DirectoryEntry(Message, frozen=True, kw_only=True):
    """A directory entry; its name is bytes."""

    name: bytes
    facts: FileStatus


class DirectoryEntries(Message, frozen=True, kw_only=True):
    """The content of the sealed file that comes with `DirectoryPart`."""

    entries: list[DirectoryEntry]


class NoteText(Message, frozen=True, kw_only=True, tag=23):
    """The text of a note; None if there is no note."""

    text: str | None


class DirectoryUsage(Message, frozen=True, kw_only=True, tag=27):
    """The disk usage of a directory in bytes, and its latest modification time in nanoseconds."""

    used: int
    written: int


class SignalResult(Message, frozen=True, kw_only=True, tag=30):
    """The answer to `SendSignal`: whether a process received the signal."""

    is_sent: bool


class ClaimText(Message, frozen=True, kw_only=True, tag=31):
    """The text of a claim and its modification time in nanoseconds.

    `is_held` means that the shim is alive or about to start. If the shim has written its process
    ID, the answer carries its pidfd.
    """

    text: bytes
    at: int
    is_held: bool


class ClaimList(Message, frozen=True, kw_only=True, tag=32):
    """The claims of an allocation: task and attempt number of each."""

    found: list[tuple[str, int]]


class ScanResult(Message, frozen=True, kw_only=True, tag=33):
    """The process IDs of each target in the last scan, up to a limit."""

    found: list[list[int]]


Secluding = MountSecrets | UnmountSecrets | UnpackStream | CollectFiles
Placing = (
    CreateAllocDir
    | WriteFile
    | ReadFile
    | WriteNote
    | ReadNote
    | RetainLogs
    | RemoveDirectory
    | MeasureDirectory
    | ListAllocations
    | Secluding
)
Looking = OpenFile | ListDirectory | OpenLog | ConnectPodman | ReadOwn
Watching = (
    SendSignal
    | FinishAttempt
    | FindAttempt
    | ListClaims
    | KillAttempt
    | ScanProcesses
    | GetProcessInfo
)
Within = StartSession | StartProgram | EndSession | GetSessionExit | ProbeSandbox
Keeping = MakeVolume | RemoveVolume
Connecting = ProbeBridge | ConnectNetwork | ReleaseNetwork
Request = Hello | StartTask | Within | Watching | Placing | Looking | Keeping | Connecting
Seeing = EndedAttempt | SignalResult | ClaimText | ClaimList | ScanResult
Telling = LaidOut | FileStatus | NoteText | DirectoryUsage | DirectoryPart
Running = ProcessStarted | AlreadyStarted | SessionOpened | SessionExit | SandboxSupport
Connected = NetworkConnected | BridgeSupport
Answer = HelloReply | Running | Done | OperationFailed | RefusedReply | Seeing | Telling | Connected


class NumberedRequest(Message, frozen=True, kw_only=True):
    """A request with its number and its count of descriptors."""

    number: Number
    descriptors: Count
    body: Request


class NumberedReply(Message, frozen=True, kw_only=True):
    """The answer to the request with this number, and its count of descriptors."""

    number: Number
    descriptors: Count
    body: Answer
