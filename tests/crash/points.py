"""Every place where the daemon does something that stays: the points before and after which it is killed.

A point is found by reading the syntax trees, so none can be forgotten: each call of an effect in `daemon/`
and `storage/`, named by its module, its function and what it calls. A write to the store is named by who
asks for it; it is done when the one COMMIT is that carries it. `APART` says which are no business of a
daemon at work, and why.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("storage", "daemon")

# What a call leaves behind, by the module or class that offers it. `open` counts where it may make a file.
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
    "trio": frozenset({"run_process"}),
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
    "http": frozenset({"ask", "connect"}),
}
SPAWNS = {"os.posix_spawn", "subprocess.run", "trio.run_process", "trio.lowlevel.open_process"}
SIGNALS = {"os.kill", "os.killpg", "signal.pidfd_send_signal"}
# What the same modules offer and what leaves nothing behind, or only in the process itself.
HARMLESS = {
    "os": frozenset(
        {
            *(
                "_exit",
                "access",
                "close",
                "chdir",
                "closerange",
                "dup2",
                "fork",
                "setsid",
                "pipe2",
                "cpu_count",
                "dup",
                "eventfd",
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
                "set_blocking",
                "set_inheritable",
                "stat",
            ),
            *("statvfs", "strerror", "sysconf", "ttyname", "umask", "uname", "urandom", "waitid"),
            *("waitpid", "waitstatus_to_exitcode", "walk"),
        }
    ),
    "shutil": frozenset({"disk_usage", "get_terminal_size", "which"}),
    "subprocess": frozenset(),
    "signal": frozenset(
        {"Signals", "getsignal", "set_wakeup_fd", "signal", "strsignal", "valid_signals"}
    ),
}
APART = {
    "daemon/cli/": "the command line: a client, which keeps nothing that a daemon promised",
    "daemon/installation.py": "`steward install`: run by hand before there is a daemon",
    "daemon/moving.py": "once, before a store is open: tests/parts/test_moving.py ends it before each effect",
    "daemon/main.py:_data_directory:shutil.rmtree": "a directory for one life, removed at its orderly end",
    "daemon/acl/rootkey.py:KeyFile.finish": "`operator rekey`: tests/service/test_rekey.py",
    "daemon/acl/seal.py:rekey": "`operator rekey`, in one commit: tests/service/test_rekey.py",
    "daemon/acl/task_tokens.py:TaskTokens.renew": "hours into the life of a task",
    "daemon/acl/task_tokens.py:TaskTokens.end": "the same: a token that another has taken the place of",
    "daemon/acl/tokens.py:Tokens.issue": "only tokens that are not stored come here",
    "daemon/acl/tokens.py:Tokens.revoke": "who signs out of a browser after a login there",
    "daemon/acl/audit.py:Audit.trim": "once an hour",
    "daemon/identity/issuer.py:Issuer._forget": "a signing key is forgotten weeks after another took its place",
    "daemon/identity/rotation.py:Rotations._failed": "a rotation by the clock that the cloud refused",
    "daemon/evals/applier.py:fail": "an evaluation that failed by a fault of ours",
    "daemon/evals/steering.py:unblock": "of more regions than one, and so refused",
    "daemon/runner/artifacts/git.py": "repositories come whole or not at all, as archives do",
    "daemon/runner/beneath.py:write_beneath:os.unlink": "takes back a file that could not be written",
    "daemon/runner/drivers/cgroup.py:_aside": "where another program has handed its groups over",
    "daemon/runner/drivers/cgroup.py:_send_kill": "kernels before 5.14, which end no group at once",
    "daemon/runner/drivers/bounds.py:OldGroups._share_cores": "where a task can have cores for itself",
    "daemon/runner/drivers/subtree.py": "machines whose controllers are of version 2",
    "daemon/runner/drivers/podman/": "needs the service of containers: tests/parts/runner/test_podman.py",
    "daemon/runner/taskdir.py:_unlock:os.chmod": "what even its owner may not remove; not as root",
    "daemon/runner/taskdir.py:remove_tree:subprocess.run": "directories deeper than the library can go",
    "storage/snapshot.py:restore": "`operator snapshot restore`: no daemon is at work",
    "storage/mark.py:forget:Path.unlink": "the same",
    "storage/snapshot.py:_copy:Path.unlink": "takes back a snapshot that could not be written",
}


@cache
def points() -> tuple[str, ...]:
    """Return the names of all points, in order."""
    return tuple(sorted(name for name in every() if not apart(name)))


def kind_of(name: str) -> str:
    """Return the kind of effect that a point has."""
    effect = name.rpartition(":")[2]
    owner = effect.rpartition(".")[0]
    if owner in ("Store", "Connection"):
        return "commit"
    if owner in ("AsyncClient", "http"):
        return "network"
    if effect in SPAWNS:
        return "spawn"
    return "signal" if effect in SIGNALS else "file"


def every() -> set[str]:
    """Return the names of all calls with effects, also of those that are left alone."""
    return {name for file in sources() for name in _Calls(file).found()}


def apart(name: str) -> str:
    """Return why a point is left alone; nothing when it is not."""
    return next((why for prefix, why in APART.items() if name.startswith(prefix)), "")


def sources() -> Iterator[Path]:
    """Yield every module of the product."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def strangers() -> dict[str, list[str]]:
    """Return calls into modules with effects that are neither effects nor known to be harmless."""
    strange = {str(file.relative_to(ROOT)): _Calls(file).strange() for file in sources()}
    return {name: found for name, found in strange.items() if found and not apart(name)}


class _Calls:
    """The calls of one module."""

    def __init__(self, file: Path) -> None:
        self._name = str(file.relative_to(ROOT))
        self._tree = ast.parse(file.read_text())
        self._knows_paths = any(
            isinstance(node, ast.ImportFrom) and node.module == "pathlib"
            for node in ast.walk(self._tree)
        )
        self._imported = {
            alias.name
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }

    def found(self) -> Iterator[str]:
        for call, within, function in _calls(self._tree, (), None):
            effect = _effect(call, function)
            if effect and (self._knows_paths or not effect.startswith("Path.")):
                yield f"{self._name}:{'.'.join(within)}:{effect}"

    def strange(self) -> list[str]:
        return [
            f"{owner}.{attribute}"
            for call, _, _ in _calls(self._tree, (), None)
            for owner, attribute in [_owned(call)]
            if owner in HARMLESS
            and owner in self._imported
            and attribute not in EFFECTS[owner] | HARMLESS[owner]
        ]


def _calls(
    node: ast.AST, within: tuple[str, ...], function: ast.AST | None
) -> Iterator[tuple[ast.Call, tuple[str, ...], ast.AST | None]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        within = (*within, "<locals>") if function is not None else within
        within, function = (*within, node.name), node
    elif isinstance(node, ast.ClassDef):
        within = (*within, node.name)
    if isinstance(node, ast.Call):
        yield node, within, function
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, within, function)


def _owned(call: ast.Call) -> tuple[str, str]:
    """Return the module that a call goes to, by its real name, and what is called."""
    if not isinstance(call.func, ast.Attribute):
        return "", ""
    owner = ast.unparse(call.func.value)
    return {"signals": "signal"}.get(owner, owner), call.func.attr


def _effect(call: ast.Call, function: ast.AST | None) -> str:
    """Return the name of the effect that a call has, or nothing."""
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
    if name == "execute" and [_text(one) for one in call.args] == ["COMMIT"]:
        return "" if owner == "self._connection" else "Connection.COMMIT"
    if name in EFFECTS["Path"] and _is_of_a_path(call, owner, name):
        return f"Path.{name}"
    return ""


def _is_of_a_path(call: ast.Call, owner: str, name: str) -> bool:
    """Tell a path's method from others of the name: texts and records are replaced, rows are touched."""
    if name == "replace":
        return len(call.args) == 1 and not call.keywords and "structs" not in owner
    return name != "touch" or not call.args


def _text(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None
