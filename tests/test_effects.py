"""How the runner touches files: below an open directory, or by a path that nobody else can change.

The runner works as root on directories in which tasks, the authors of jobs and local users can put
links at any moment. A call that names a file by its path is safe there only if every directory on
the way belongs to the daemon. This test reads the syntax trees of everything that runs there and
knows each such call by its module, its function and its name. A new one fails: open the directory
with `daemon/runner/beneath.py` and pass `dir_fd`, or say in `ALLOWED` why the path is safe.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUNNER = ROOT / "daemon/runner"
MODULES = sorted([*RUNNER.rglob("*.py"), *(ROOT / "daemon/launcher").rglob("*.py")])

# Calls that name a file by its path, by the module that offers them.
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
# What takes a descriptor in the place of a path.
EITHER = {"os.listdir", "os.scandir", "os.setxattr", "os.truncate"}
DESCRIPTORS = frozenset({"descriptor", "directory", "source", "inner"})

KERNEL = "a file system of the kernel, or a place that the administrator names"
# By path below directories that are the daemon's alone, up to the root.
OWN = "the allocation's directory, or one beside it: only the daemon writes in it and above it"
WORKSHOP = "below .fetch.TASK in the allocation's directory: mode 0700, the daemon's alone"
LOGS = "alloc and alloc/logs are the daemon's and sticky; the file is checked to be its own"
COUNTED = "read for sizes alone: a link that is swapped in changes a number"
TOP = "opens a directory of the daemon's own, below which all else is opened"

# Beginnings of calls, and why their paths are safe.
ALLOWED = {
    "artifacts/archive.py:": WORKSHOP,
    "artifacts/fetch.py:": WORKSHOP,
    "artifacts/git.py:": WORKSHOP,
    "artifacts/place.py:discard:": WORKSHOP,
    "artifacts/place.py:give:": WORKSHOP,
    "artifacts/place.py:move:": WORKSHOP,
    "artifacts/place.py:opened:os.open": TOP,
    "beneath.py:open_directory:os.open": TOP,
    "launcher/beneath.py:resolver:os.open": KERNEL,
    "covering.py:": "what is mounted, and a directory below which only the daemon acts",
    "drivers/bounds.py:": KERNEL,
    "drivers/cgroup.py:": KERNEL,
    "egress.py:Guard.set_up:": KERNEL,
    "drivers/claim.py:": OWN,
    "drivers/podman/logs.py:": OWN,
    "drivers/scan.py:": KERNEL,
    "drivers/slurm/bundle.py:_write:tarfile.open": "an open file",
    "drivers/slurm/cluster.py:Cluster.submit:Path.read_bytes": OWN,
    "drivers/slurm/engine.py:_authority:Path.read_text": KERNEL,
    "drivers/subtree.py:": KERNEL,
    "fingerprint.py:": KERNEL,
    "kept_logs.py:_every:os.scandir": COUNTED,
    "kept_logs.py:_has_printed:Path.iterdir": COUNTED,
    "kept_logs.py:about:Path.read_bytes": OWN,
    "kept_logs.py:keep:": OWN,
    "launcher/begin.py:_alone:os.open": KERNEL,
    "launcher/directories.py:lay_out:": TOP,
    "launcher/places.py:below:os.open": TOP,
    "launcher/serve.py:Server.greet:": TOP,
    "launcher/shims.py:": KERNEL,
    "launcher/starting.py:_output:os.open": KERNEL,
    "logs.py:TaskLog._moved:os.listdir": OWN,
    "logs.py:_read:os.open": LOGS,
    "machine.py:keep_descriptors:os.listdir": KERNEL,
    "networks.py:find_network:Path.read_text": KERNEL,
    "rotation.py:Sweeper._drop:os.open": LOGS,
    "rotation.py:Sweeper._move:": OWN,
    "rotation.py:_begin_copy:": OWN,
    "rotation.py:_copy:open": LOGS,
    "rotation.py:_forget:": OWN,
    "rotation.py:_swap:": LOGS,
    "rotation.py:_unfinished:os.listdir": OWN,
    "rotation.py:finish_move:Path.unlink": OWN,
    "rotation.py:recover:": OWN,
    "secret_dirs.py:_is_empty:os.listdir": COUNTED,
    "secret_dirs.py:mounted:open": KERNEL,
    "taskdir.py:_unlock:os.chmod": "by the name that the kernel gives to an open directory",
    "taskdir.py:make_root:": OWN,
    "taskdir.py:present:os.scandir": OWN,
    "taskdir.py:remove:os.rename": OWN,
    "taskdir.py:remove:os.fwalk": "no link is followed, and each step goes by descriptors",
    "taskdir.py:remove_tree:shutil.rmtree": "no link is followed, and each step goes by descriptors",
    "uids.py:Uids.__init__:Path.mkdir": OWN,
    "uids.py:Uids._opened:os.open": TOP,
    "uids.py:open_uids:Path.read_text": KERNEL,
    "drivers/sandbox.py:_accounts:open": KERNEL,
    "usage.py:": KERNEL,
}


def calls(
    node: ast.AST, within: tuple[str, ...] = ()
) -> Iterator[tuple[ast.Call, tuple[str, ...]]]:
    """Yield each call of a tree, and the function that makes it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        within = (*within, node.name)
    if isinstance(node, ast.Call):
        yield node, within
    for child in ast.iter_child_nodes(node):
        yield from calls(child, within)


def name_of(call: ast.Call) -> str:
    """Return the name of a call by path; nothing for any other call."""
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
    """Return whether a call goes below an open directory, or to an open file."""
    given = {keyword.arg for keyword in call.keywords}
    if name == "os.rename":
        return {"src_dir_fd", "dst_dir_fd"} <= given
    if given & BY_DESCRIPTOR:
        return True
    if name == "open":  # of a descriptor that was opened with its own flags
        return isinstance(call.args[0], ast.Call) and ast.unparse(call.args[0].func) == "os.open"
    first = call.args[0] if call.args else None
    return name in EITHER and isinstance(first, ast.Name) and first.id in DESCRIPTORS


def found_in(text: str, module: str) -> set[str]:
    """Return the calls by path of a module, each by where it stands."""
    return {
        f"{module}:{'.'.join(within)}:{name}"
        for call, within in calls(ast.parse(text))
        if (name := name_of(call)) and not is_by_descriptor(call, name)
    }


def name_in(path: Path) -> str:
    base = RUNNER if path.is_relative_to(RUNNER) else RUNNER.parent
    return str(path.relative_to(base))


def found() -> set[str]:
    """Return the calls by path of all modules."""
    return {one for path in MODULES for one in found_in(path.read_text(), name_in(path))}


def test_no_file_is_named_by_a_path_that_others_can_change() -> None:
    assert [one for one in sorted(found()) if not one.startswith(tuple(ALLOWED))] == []


def test_each_path_that_is_allowed_is_used() -> None:
    everywhere = found()
    unused = [one for one in ALLOWED if not any(name.startswith(one) for name in everywhere)]
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
def test_a_call_by_path_is_found(line: str) -> None:
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
def test_a_call_below_an_open_directory_is_not(line: str) -> None:
    assert found_in(f"def f():\n    {line}\n", "m") == set()
