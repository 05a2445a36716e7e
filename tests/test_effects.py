"""File access of the runner: below an open directory, or by a path that no other user can change.

The runner works as root on directories in which tasks, job authors and local users can create links
at any time. There, a call that names a file by path is safe only if every directory on the way
belongs to the daemon. This test reads the syntax trees of the runner's code and knows each such
call by module, function and callee. A new call fails the test. Open the directory with
`daemon/runner/core/safe_open.py` and pass `dir_fd`, or state in `ALLOWED` why the path is safe.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUNNER = ROOT / "daemon/runner"
MODULES = sorted([*RUNNER.rglob("*.py"), *(ROOT / "daemon/launcher").rglob("*.py")])

# Calls that name a file by its path, by their module.
BY_PATH = {
    "os": frozenset(
        {
            *(
                "chmod",
                "chown",
                "lchown",
                "link",
                "listdir",
                "makedirs",
                "mkdir",
                "mkfifo",
                "mknod",
            ),
            *(
                "open",
                "remove",
                "removedirs",
                "removexattr",
                "rename",
                "renames",
                "replace",
                "rmdir",
            ),
            *("scandir", "setxattr", "symlink", "truncate", "unlink", "utime", "walk", "fwalk"),
        }
    ),
    "shutil": frozenset({"chown", "copy", "copy2", "copyfile", "copytree", "move", "rmtree"}),
    "tarfile": frozenset({"open"}),
    "zipfile": frozenset({"ZipFile"}),
    "": frozenset({"open"}),
}
OF_PATHS = frozenset(
    {
        *("chmod", "hardlink_to", "iterdir", "mkdir", "read_bytes", "read_text", "rename", "rglob"),
        *("rmdir", "symlink_to", "touch", "unlink", "write_bytes", "write_text"),
    }
)
BY_DESCRIPTOR = {"dir_fd", "src_dir_fd", "dst_dir_fd"}
# Arguments that pass a descriptor instead of a path.
EITHER = {"os.listdir", "os.scandir", "os.setxattr", "os.truncate"}
DESCRIPTORS = frozenset({"descriptor", "directory", "source", "inner"})

KERNEL = "a file system of the kernel, or a place that the administrator names"
# Paths below directories that only the daemon can change, up to the root.
OWN = "the allocation's directory, or one beside it: only the daemon writes in it and above it"
WORKSHOP = "below staging/ beside the store: mode 0700, the daemon's alone"
BESIDE = "in the directory of the store, which is the daemon's alone"
COUNTED = "read for sizes alone: a link that is swapped in changes a number"
OPENED = "by the name that the kernel gives to what is open"
TOP = "opens a directory of the daemon's own, below which all else is opened"

# Prefixes of calls, and why their paths are safe.
ALLOWED = {
    "core/launcher_policy.py:subuids:": KERNEL,
    "launcher/hardening.py:": KERNEL,
    "setup/artifacts/archive.py:": WORKSHOP,
    "setup/artifacts/fetch.py:": WORKSHOP,
    "setup/artifacts/git.py:": WORKSHOP,
    "setup/artifacts/git_sandbox.py:": WORKSHOP,
    "setup/artifacts/install.py:": WORKSHOP,
    "setup/artifacts/local_files.py:LocalFiles.copy:": KERNEL,
    "setup/artifacts/local_files.py:LocalFiles._copy_": WORKSHOP,
    "setup/file_keeper.py:": WORKSHOP,
    "core/safe_open.py:open_directory:os.open": TOP,
    "launcher/safe_open.py:resolver:os.open": KERNEL,
    "launcher/safe_open.py:_is_secrets_mount:open": KERNEL,
    "nosuid_mount.py:": "what is mounted, and a directory below which only the daemon acts",
    "drivers/cgroup_v1.py:": KERNEL,
    "drivers/cgroup_v2.py:": KERNEL,
    "task_egress.py:TaskEgressPolicy.set_up:": KERNEL,
    "drivers/podman/driver.py:PodmanDriver.start:os.makedirs": BESIDE,
    "drivers/podman/logs.py:": BESIDE,
    "drivers/slurm/bundle.py:_write:tarfile.open": "an open file",
    "drivers/slurm/cluster.py:SlurmCluster.submit:Path.read_bytes": OWN,
    "drivers/slurm/wrapper_api.py:WrapperApi._packed.work:os.makedirs": BESIDE,
    "drivers/slurm/kept_uploads.py:": BESIDE,
    "drivers/slurm/backend.py:_authority:Path.read_text": KERNEL,
    "drivers/cgroup_v2_limits.py:": KERNEL,
    "fingerprint.py:": KERNEL,
    "host_usage.py:HostMeter.measure:Path.read_text": KERNEL,
    "host_usage.py:BridgeTraffic.of:Path.read_text": KERNEL,
    "launcher/fork.py:_detach:os.open": KERNEL,
    "launcher/fork.py:_serve:os.open": KERNEL,
    "launcher/log_guard.py:_held:os.open": TOP,
    "launcher/readable_files.py:entries:os.open": OPENED,
    "launcher/readable_files.py:open_file:os.open": OPENED,
    "launcher/alloc_dir.py:make_root:": TOP,
    "launcher/alloc_removal.py:retain_logs:os.makedirs": TOP,
    "launcher/alloc_removal.py:_unlock:os.chmod": "by the name that the kernel gives to an open directory",
    "launcher/cgroups.py:": KERNEL,
    "launcher/claims_and_logs.py:below:os.open": TOP,
    "launcher/process_scan.py:": KERNEL,
    "launcher/server.py:Server.answer_hello:": TOP,
    "launcher/server.py:Server.unpack.work:open": "a descriptor that came with the request",
    "launcher/server.py:Server.collect.work:open": "a descriptor that came with the request",
    "launcher/secrets_tmpfs.py:": KERNEL,
    "launcher/shims.py:": KERNEL,
    "launcher/networks.py:": KERNEL,
    "launcher/bridge.py:": KERNEL,
    "drivers/bridged_names.py:": KERNEL,
    "launcher/programs.py:_spawn:open": KERNEL,
    "launcher/volumes.py:make:": TOP,
    "launcher/task_start.py:_outputs:os.open": KERNEL,
    "logs/retained_logs.py:tidy:os.listdir": BESIDE,
    "core/task_log.py:Stream": BESIDE,
    "core/task_log.py:Logs.moved_names:os.listdir": BESIDE,
    "launcher/readable_files.py:read_own:os.open": KERNEL,
    "launcher/sandbox.py:_accounts:open": KERNEL,
    "launcher/sandbox.py:_without_links:os.open": KERNEL,
    "launcher/sandbox.py:opened:os.open": KERNEL,
    "core/file_descriptors.py:set_cloexec:os.listdir": KERNEL,
    "host_networks.py:find_network:Path.read_text": KERNEL,
    "logs/rotation.py:": BESIDE,
    "launcher/alloc_uids.py:AllocUids.__init__:os.makedirs": TOP,
    "core/resource_usage.py:": KERNEL,
}


def calls(
    node: ast.AST, within: tuple[str, ...] = ()
) -> Iterator[tuple[ast.Call, tuple[str, ...]]]:
    """Yield each call of a tree with the names of the functions that contain it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        within = (*within, node.name)
    if isinstance(node, ast.Call):
        yield node, within
    for child in ast.iter_child_nodes(node):
        yield from calls(child, within)


def name_of(call: ast.Call) -> str:
    """Return the name of a call that names a file by path; empty for any other call."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id if function.id in BY_PATH[""] else ""
    if not isinstance(function, ast.Attribute):
        return ""
    owner = ast.unparse(function.value)
    if owner in BY_PATH:
        return f"{owner}.{function.attr}" if function.attr in BY_PATH[owner] else ""
    is_of_path = function.attr in OF_PATHS and not owner.startswith(("msgspec", "re."))
    return f"Path.{function.attr}" if is_of_path else ""


def is_by_descriptor(call: ast.Call, name: str) -> bool:
    """Return whether a call is relative to an open directory, or on an open file."""
    given = {keyword.arg for keyword in call.keywords}
    if name == "os.rename":
        return {"src_dir_fd", "dst_dir_fd"} <= given
    if given & BY_DESCRIPTOR:
        return True
    if name == "open":  # for a descriptor that was opened with explicit flags
        return isinstance(call.args[0], ast.Call) and ast.unparse(call.args[0].func) == "os.open"
    first = call.args[0] if call.args else None
    return name in EITHER and isinstance(first, ast.Name) and first.id in DESCRIPTORS


def found_in(text: str, module: str) -> set[str]:
    """Return the locations of the calls in a module that name a file by path."""
    return {
        f"{module}:{'.'.join(within)}:{name}"
        for call, within in calls(ast.parse(text))
        if (name := name_of(call)) and not is_by_descriptor(call, name)
    }


def name_in(path: Path) -> str:
    base = RUNNER if path.is_relative_to(RUNNER) else RUNNER.parent
    return str(path.relative_to(base))


def found() -> set[str]:
    """Return the locations of the calls in all modules that name a file by path."""
    return {item for path in MODULES for item in found_in(path.read_text(), name_in(path))}


def test_no_file_is_opened_by_a_path_that_others_can_change() -> None:
    assert [line for line in sorted(found()) if not line.startswith(tuple(ALLOWED))] == []


def test_each_allowed_path_is_used() -> None:
    everywhere = found()
    unused = [item for item in ALLOWED if not any(name.startswith(item) for name in everywhere)]
    assert unused == []


@pytest.mark.parametrize(
    "line",
    [
        "os.open(path, os.O_RDONLY)",
        "os.mkdir(f'{home}/x')",
        "os.rename(a, b, src_dir_fd=above)",
        "os.chown(path, 0, 0, follow_symlinks=False)",
        "open(path, 'w')",
        "Path(home, 'x').touch()",
        "shutil.rmtree(home)",
        "os.truncate(log.path, 0)",
        "os.scandir(path)",
    ],
)
def test_call_with_a_path_is_detected(line: str) -> None:
    assert len(found_in(f"def f():\n    {line}\n", "m")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "os.open(name, flags, dir_fd=above)",
        "os.rename(a, b, src_dir_fd=above, dst_dir_fd=above)",
        "os.fchmod(descriptor, 0o700)",
        "os.scandir(descriptor)",
        "open(os.open(name, flags, dir_fd=above), 'wb')",
        "text.replace('a', 'b')",
    ],
)
def test_call_below_an_open_directory_is_not_detected(line: str) -> None:
    assert found_in(f"def f():\n    {line}\n", "m") == set()
