"""Crash points: every place where the daemon has a persistent effect.

The points are derived from the syntax trees, so none can be missed. A point is a call of an effect
in `daemon/` and `storage/`. Its name consists of the module, the function and the callee. The
caller names a write to the store; the write takes effect in the COMMIT that contains it. `APART`
lists excluded calls with reasons.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("storage", "daemon")

# Calls with persistent effects, by module or class. `open` counts if it can create a file.
EFFECTS = {
    "os": frozenset(
        {
            *(
                "chmod",
                "chown",
                "fchmod",
                "fchown",
                "fsync",
                "ftruncate",
                "kill",
                "killpg",
                "makedirs",
            ),
            *("mkdir", "open", "posix_spawn", "pwrite", "rename", "rmdir", "symlink", "truncate"),
            *("removexattr", "setxattr", "unlink", "write"),
        }
    ),
    "shutil": frozenset({"copyfile", "copytree", "rmtree"}),
    "subprocess": frozenset({"run"}),
    "signal": frozenset({"pidfd_send_signal"}),
    "trio.lowlevel": frozenset({"open_process"}),
    "Path": frozenset(
        {
            *("chmod", "hardlink_to", "mkdir", "rename", "replace", "rmdir", "symlink_to", "touch"),
            *("unlink", "write_bytes", "write_text"),
        }
    ),
    "Store": frozenset({"write"}),
    "Connection": frozenset({"backup", "executescript"}),
    "AsyncClient": frozenset({"stream"}),
    "http_client": frozenset({"send_request", "connect"}),
}
SPAWNS = {"os.posix_spawn", "subprocess.run", "trio.lowlevel.open_process"}
_CALL_OF_EFFECT = re.compile(
    rf"\.\s*(?:execute|{'|'.join(sorted({name for names in EFFECTS.values() for name in names}))})\s*\("
)
SIGNALS = {"os.kill", "os.killpg", "signal.pidfd_send_signal"}
# Calls of the same modules without an effect, or with an effect on the process only.
HARMLESS = {
    "os": frozenset(
        {
            *(
                "WIFSTOPPED",
                "_exit",
                "access",
                "close",
                "chdir",
                "fchdir",
                "closerange",
                "dup2",
                "fork",
                "setsid",
                "pipe2",
                "cpu_count",
                "dup",
                "eventfd",
                "execve",
                "fdopen",
                "fsdecode",
                "fsencode",
                "fspath",
            ),
            *(
                "fstat",
                "fwalk",
                "getegid",
                "geteuid",
                "getgid",
                "getgrouplist",
                "setegid",
                "seteuid",
                "setgroups",
                "setresgid",
                "setresuid",
                "nice",
                "getgroups",
                "getloadavg",
            ),
            *(
                "getpid",
                "getppid",
                "getsid",
                "getuid",
                "getxattr",
                "isatty",
                "listdir",
                "lseek",
                "lstat",
            ),
            *(
                "fchdir",
                "major",
                "memfd_create",
                "minor",
                "openpty",
                "pidfd_open",
                "pipe",
                "pipe2",
                "pread",
                "read",
            ),
            *(
                "readlink",
                "scandir",
                "sched_getaffinity",
                "sched_getscheduler",
                "sched_param",
                "sched_setscheduler",
                "set_blocking",
                "set_inheritable",
                "stat",
            ),
            *("statvfs", "strerror", "sysconf", "ttyname", "umask", "uname", "urandom", "waitid"),
            *("waitpid", "waitstatus_to_exitcode", "walk"),
        }
    ),
    "shutil": frozenset({"copyfileobj", "disk_usage", "get_terminal_size", "which"}),
    "subprocess": frozenset(),
    "signal": frozenset(
        {
            *("Signals", "alarm", "getsignal", "pthread_sigmask", "set_wakeup_fd", "signal"),
            *("sigtimedwait", "strsignal", "valid_signals"),
        }
    ),
}
_PATHS = re.compile(r"^\s*from pathlib import\b", re.MULTILINE)
_IMPORT = re.compile(
    rf"^\s*import\b.*\b(?:{'|'.join(map(re.escape, sorted(HARMLESS)))})\b", re.MULTILINE
)
APART = {
    "daemon/cli/": "the command line: a client, which keeps nothing that a daemon promised",
    "daemon/process/installation.py": "`steward install`: run by hand before there is a daemon",
    "daemon/admin/operator.py": "`operator snapshot`: by a client; the store's own copies are points",
    "daemon/process/data_dir_migration.py": "once, before a store is open: tests/parts/test_data_dir_migration.py ends it before each effect",
    "daemon/process/startup.py:_data_directory:shutil.rmtree": "a directory for one daemon_run, removed at its orderly end",
    "daemon/acl/rootkey.py:KeyFile.finish": "`operator rekey`: tests/service/test_rekey.py",
    "daemon/acl/seal.py:replace_root_key": "`operator rekey`, in one commit: tests/service/test_rekey.py",
    "daemon/acl/task_tokens.py:TaskTokens.renew": "hours into the daemon_run of a task",
    "daemon/acl/task_tokens.py:TaskTokens.end": "the same: a token that another has taken the place of",
    "daemon/acl/tokens.py:TokenStore.issue": "only tokens that are not stored come here",
    "daemon/acl/tokens.py:TokenStore.revoke": "who signs out of a browser after a login there",
    "daemon/acl/audit.py:Audit.trim": "once an hour",
    "daemon/identity/issuer.py:Issuer._forget": "a signing key is forgotten weeks after another took its place",
    "daemon/identity/client_secret_rotation.py:ClientSecretRotator._failed": "a rotation by the clock that the cloud refused",
    "daemon/fences.py:Fences.save": "a fault of ours: tests/parts/test_fences.py",
    "daemon/acl/tokens.py:TokenStore._remove_each": "an error of the daemon: tests/parts/test_fences.py",
    "daemon/evals/deployment_watcher.py:_fail_deployment": "the same",
    "daemon/identity/federation_refresh.py": "needs the token file of a federation: tests/parts/identity/test_federation_refresh.py",
    "daemon/jobs/payload_files.py:PayloadFiles._collect": "a day after the last use: tests/parts/jobs/test_payload_files.py",
    "daemon/jobs/payload_files.py:_append:os.ftruncate": "takes back a piece that a full disk cut off",
    "daemon/launcher/alloc_uids.py:AllocUids.__init__:os.unlink": "an allocation whose directory another program removed",
    "daemon/launcher/child_processes.py:ChildOperations.kill_stopped": "a child that a task has stopped: tests/attacks/test_compromised.py",
    "daemon/launcher/claims_and_logs.py:open_log:os.unlink": "a log that a task has replaced: tests/parts/launcher/test_log_guard.py",
    "daemon/launcher/root_programs.py:run:os.kill": "a program that hangs: tests/parts/launcher/test_bridge_programs.py",
    "daemon/launcher/task_files.py:_put:os.unlink": "takes back a file that could not be written",
    "daemon/otlp/sender.py": "traces, which promise nothing: tests/parts/otlp/test_sender.py",
    "daemon/process/startup.py:_permit_traversal": "a daemon with the user steward: tests/service/test_privilege_separation.py",
    "daemon/process/store_ownership.py": "the same: tests/parts/test_ownership.py",
    "daemon/runner/task_egress.py": "the same: tests/attacks/test_egress.py",
    "daemon/runner/node_registration.py:restore_unreadable": "a row that another program damaged: tests/parts/runner/test_node_rows.py",
    "daemon/runner/setup/artifacts/fetch.py:ArtifactFetcher._copy_upload:os.unlink": "an upload that another program damaged",
    "daemon/runner/unfinished_volumes.py": "at the start after a kill in the scene of volumes",
    "daemon/runner/usage_history.py:UsageRecorder.fold": "every five minutes: tests/service/test_usage_history.py",
    "daemon/evals/applier.py:fail": "an evaluation that failed by a fault of ours",
    "daemon/evals/deployment_actions.py:unblock": "of more regions than one, and so refused",
    "daemon/runner/setup/artifacts/git_sandbox.py": "the same",
    "daemon/runner/setup/artifacts/git.py": "repositories come whole or not at all, as archives do",
    "daemon/runner/drivers/cgroup_v2.py:_move_into_child": "where another program has handed its groups over",
    "daemon/runner/drivers/cgroup_v1.py:CgroupV1._share_cores": "where a task can have cores for itself",
    "daemon/runner/drivers/cgroup_v2_limits.py": "machines whose controllers are of version 2",
    "daemon/runner/drivers/podman/": "needs the service of containers: tests/parts/runner/test_podman.py",
    "daemon/launcher/alloc_removal.py:_unlock:os.chmod": "what even its owner may not remove; not as root",
    "storage/snapshot.py:restore": "`operator snapshot restore`: no daemon is at work",
    "storage/wal_watermark.py:delete_watermark:Path.unlink": "the same",
    "storage/snapshot.py:_copy:Path.unlink": "takes back a snapshot that could not be written",
}


@cache
def points() -> tuple[str, ...]:
    """Return the names of all points in order."""
    return tuple(sorted(name for name in every() if not apart(name)))


def kind_of(name: str) -> str:
    """Return the kind of a point's effect."""
    effect = name.rpartition(":")[2]
    owner = effect.rpartition(".")[0]
    if owner in ("Store", "Connection"):
        return "commit"
    if owner in ("AsyncClient", "http_client"):
        return "network"
    if effect in SPAWNS:
        return "spawn"
    return "signal" if effect in SIGNALS else "file"


@cache
def every() -> frozenset[str]:
    """Return the names of all calls with effects, including the excluded ones."""
    return frozenset(name for file in sources(_CALL_OF_EFFECT) for name in _Calls(file).found())


def apart(name: str) -> str:
    """Return why a point is excluded; empty if it is not."""
    return next((why for prefix, why in APART.items() if name.startswith(prefix)), "")


def sources(pattern: re.Pattern[str]) -> Iterator[Path]:
    """Yield the modules of the product whose text matches a pattern.

    Parsing a module takes much longer than a search for the text of a call.
    """
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if pattern.search(file.read_text()):
                yield file


def strangers() -> dict[str, list[str]]:
    """Return the unclassified calls of each file: neither listed as effects nor as harmless.

    Only calls into modules that contain effects are considered.
    """
    strange = {str(file.relative_to(ROOT)): _Calls(file).strange() for file in sources(_IMPORT)}
    return {name: found for name, found in strange.items() if found and not apart(name)}


class _Calls:
    """The calls of one module."""

    def __init__(self, file: Path) -> None:
        self._name = str(file.relative_to(ROOT))
        text = file.read_text()
        self._tree = ast.parse(text)
        self._knows_paths = _PATHS.search(text) is not None

    def found(self) -> Iterator[str]:
        for call, within, function in _calls(self._tree):
            effect = _effect(call, function)
            if effect and (self._knows_paths or not effect.startswith("Path.")):
                yield f"{self._name}:{'.'.join(within)}:{effect}"

    def strange(self) -> list[str]:
        imported = {
            alias.name
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        return [
            f"{owner}.{attribute}"
            for call, _, _ in _calls(self._tree)
            for owner, attribute in [_owned(call)]
            if owner in HARMLESS
            and owner in imported
            and attribute not in EFFECTS[owner] | HARMLESS[owner]
        ]


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, tuple[str, ...], ast.AST | None]]:
    """Yield each call with the names of the classes and functions around it, and the function."""
    waiting: list[tuple[ast.AST, tuple[str, ...], ast.AST | None]] = [(tree, (), None)]
    while waiting:
        node, within, function = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            within = (*within, "<locals>") if function is not None else within
            within, function = (*within, node.name), node
        elif isinstance(node, ast.ClassDef):
            within = (*within, node.name)
        elif isinstance(node, ast.Call):
            yield node, within, function
        waiting += [(child, within, function) for child in ast.iter_child_nodes(node)]


def _owned(call: ast.Call) -> tuple[str, str]:
    """Return the imported module that a call refers to, by its real name, and the callee."""
    if not isinstance(call.func, ast.Attribute):
        return "", ""
    owner = ast.unparse(call.func.value)
    return {"signals": "signal"}.get(owner, owner), call.func.attr


def _effect(call: ast.Call, function: ast.AST | None) -> str:
    """Return the name of a call's effect, or an empty string; `function` encloses the call."""
    owner, name = _owned(call)
    if owner in EFFECTS:
        is_effect = name in EFFECTS[owner] and not (owner == "os" and name == "open")
        makes = owner == "os" and name == "open" and "O_CREAT" in ast.unparse(function or call)
        return f"{owner}.{name}" if is_effect or makes else ""
    if name == "write" and owner.endswith("store"):
        return "Store.write"
    if name in EFFECTS["Connection"]:
        return f"Connection.{name}"
    if name == "stream" and owner == "client":
        return "AsyncClient.stream"
    if name == "execute" and [_text(item) for item in call.args] == ["COMMIT"]:
        return "" if owner == "self._connection" else "Connection.COMMIT"
    if name in EFFECTS["Path"] and _is_of_a_path(call, owner, name):
        return f"Path.{name}"
    return ""


def _is_of_a_path(call: ast.Call, owner: str, name: str) -> bool:
    """Return whether a call is a path's method.

    Texts and records also have `replace`, and rows have `touch`.
    """
    if name == "replace":
        return len(call.args) == 1 and not call.keywords and "structs" not in owner
    return name != "touch" or not call.args


def _text(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None
