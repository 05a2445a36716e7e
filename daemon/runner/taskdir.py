"""The directories of an allocation: made, filled with the payload, and removed.

    <allocation>/            the daemon's: users of its tasks may pass, others may not
        alloc/               shared by its tasks: data, logs, tmp
        <task>/              local, secrets, private, tmp
        .claim.<task>.<n>    a driver's trace of the n-th attempt at a task
        .resolv.<task>       its name servers, if its group has its own
        .accounts.*.<task>   users and groups as it sees them, if its user is none of the machine's
        .fetched.<task>      says that what the task brings along has been fetched
        .logs/               what was moved out of a log, where that is necessary

A task directory belongs to the user of its task, and nobody else may enter it. Where all tasks of an
allocation have one user, that user owns the shared `data` and `tmp`; otherwise both are open to all
users who may pass. Shared directories are sticky: no task can put another thing in the place of
what the daemon, or another user's task, has made there.

Everything is made below an open descriptor, without following a link. A directory that is there
already is taken only if it belongs to the daemon or to the user for whom it is made.
"""

import base64
import errno
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from daemon.launcher import places
from daemon.runner.beneath import (
    Escapes,
    inner,
    make_directory,
    open_beneath,
    open_directory,
    write_beneath,
)
from daemon.runner.drivers.shim import PATH
from daemon.runner.env import Directories
from daemon.runner.owner import ANYBODY, Owner, ours
from storage.errors import Invalid
from storage.records.task import Task

SHARED, CLAIM = places.SHARED, places.CLAIM  # of whom the launcher opens files
SECRETS = "secrets"
PRIVATE = "private"
RESOLVER = ".resolv."
ACCOUNTS = ".accounts."
_FETCHED = ".fetched."
MOVED = ".logs"
_GONE = ".removed"  # behind the name of a directory that is being removed
# The list of users in the form in which the kernel takes it (acl(5), <linux/posix_acl_xattr.h>).
_ACL, _ACL_VERSION, _NO_ID = "system.posix_acl_access", 2, 0xFFFFFFFF
_ACL_OWNER, _ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_ABOVE = 0o711
_OPEN = 0o777
_STICKY = 0o1777
_PRIVATE = 0o700


def directories(root: str, task: str) -> Directories:
    """Return where a task of an allocation finds its directories."""
    return Directories(
        shared=f"{root}/{SHARED}", local=f"{root}/{task}/local", secrets=f"{root}/{task}/{SECRETS}"
    )


def meant(task: str, places: Directories, path: str) -> str:
    """Return what a path means to a task, below the directory of its allocation.

    One that begins with a directory of `places`, as the task sees them, means that one; any other
    lies in the task's own directory. Raises `Escapes` for what is not in there or in the shared one.
    """
    found = inner(f"{task}/{path}")
    for seen, here in (
        (places.shared, SHARED),
        (places.local, f"{task}/local"),
        (places.secrets, f"{task}/{SECRETS}"),
    ):
        if path == seen or path.startswith(f"{seen}/"):
            found = inner(here + path.removeprefix(seen))
            break
    if found.partition("/")[0] not in (task, SHARED):
        raise Escapes
    return found


def make_root(alloc_dir: Path) -> None:
    """Make the directory of all allocations; tasks of other users can pass through to their own.

    Pass, not look: what else lies in the directory above it has modes of its own.
    """
    alloc_dir.mkdir(parents=True, exist_ok=True)
    alloc_dir.chmod(_ABOVE)
    if os.geteuid() == 0:  # otherwise there are no other users
        above = alloc_dir.parent
        above.chmod(stat.S_IMODE(above.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)


def exists(root: str) -> bool:
    """Tell whether an allocation has a directory."""
    return os.path.isdir(root)


def make_shared(root: str, owners: Iterable[Owner] = (), previous: str = "") -> None:
    """Make the directory of an allocation, and what its tasks share. Raises `OSError`.

    `owners` are those of its tasks. `previous` is the directory of the one in whose place it comes,
    if its data is to be kept.
    """
    us = ours()
    users = frozenset(owners) or {us}
    others = users - {us}
    around = _STICKY if others else _PRIVATE
    is_one = len(users) == 1 and ANYBODY not in users
    mode, owner = (_PRIVATE, next(iter(users))) if is_one else (_STICKY, us)
    with _root(root) as above:
        let_pass(above, {uid for uid, _ in others - {ANYBODY}})
        with _made(above, SHARED, around, us) as shared:
            with _made(shared, "logs", around, us):
                pass
            _hand_on(previous, SHARED, "data", shared)
            for name in ("data", "tmp"):
                with _made(shared, name, mode, owner, is_handed_on=bool(previous)):
                    pass


def make_task(
    root: str, task: str, owner: Owner, previous: str = "", *, is_seen: bool = True
) -> None:
    """Make the directory of a task. Raises `Invalid` when its name cannot be one, or `OSError`.

    `owner` is its user. `previous` is as above. A task directory that its task does not see, as
    behind walls, is the daemon's: so nobody can replace the directories in it that are mounted.
    """
    if task in {"", SHARED} or task.startswith(".") or "/" in task or "\0" in task:
        raise Invalid(f"task name {task!r} cannot be the name of a directory")
    us = ours()
    is_open = owner == ANYBODY
    whose = us if is_open else owner
    mode = _OPEN if is_open else _PRIVATE
    with _root(root) as above, _made(above, task, _PRIVATE, whose if is_seen else us) as home:
        _hand_on(previous, task, "local", home)
        for name, rights, user in (
            ("local", mode, whose),
            (SECRETS, mode, whose),
            (PRIVATE, _PRIVATE, us),
            ("tmp", _STICKY if is_open else _PRIVATE, whose),
        ):
            is_handed_on = bool(previous) or is_open
            with _made(home, name, rights, user, is_handed_on=is_handed_on):
                pass


@contextmanager
def _root(root: str) -> Iterator[int]:
    """Give a descriptor of the directory of an allocation, made if need be. Raises `OSError`."""
    folder, name = os.path.split(root)
    try:
        above = open_directory(folder)
    except FileNotFoundError:  # somebody has removed the directory of all allocations
        make_root(Path(folder))
        above = open_directory(folder)
    try:
        with _made(above, name, None, ours()) as descriptor:
            yield descriptor
    finally:
        os.close(above)


@contextmanager
def _made(
    above: int, name: str, mode: int | None, owner: Owner, *, is_handed_on: bool = False
) -> Iterator[int]:
    """Give a descriptor of a directory that has exactly this mode and owner. Raises `OSError`.

    One that another allocation has handed on, or that containers share, may have been anybody's.
    """
    descriptor = make_directory(above, name, mode, owner, check=not is_handed_on)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def let_pass(directory: int, users: Collection[int]) -> None:
    """Let these users pass through a directory, and nobody else but the daemon. Raises `OSError`.

    The list of users is an ACL. Where the file system has none, everybody can pass.
    """
    if not users:
        os.fchmod(directory, _PRIVATE)
        return
    entries = [(_ACL_OWNER, 7, _NO_ID), *((_ACL_USER, 1, uid) for uid in sorted(users))]
    entries += [(_ACL_GROUP, 0, _NO_ID), (_ACL_MASK, 1, _NO_ID), (_ACL_OTHERS, 0, _NO_ID)]
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(directory, _ACL, struct.pack("<I", _ACL_VERSION) + packed)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EPERM):
            raise
        os.fchmod(directory, _ABOVE)


def _hand_on(previous: str, folder: str, name: str, target: int) -> None:
    """Move a directory here from the previous allocation, which has ended.

    Each goes at once and only to where none is yet, so that the next daemon goes on where this
    one was killed. What a task has put in the place of such a directory stays where it is.
    """
    if not previous:
        return
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=target, follow_symlinks=False)
        return
    with suppress(FileNotFoundError, NotADirectoryError, Escapes), ExitStack() as opened:
        source = open_beneath(previous, folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        opened.callback(os.close, source)
        if stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def write_dispatched(root: str, task: Task, payload: str | None) -> None:
    """Write the payload of a dispatch, base64, where a task wants it, if it wants it; errors as below."""
    if payload and task.dispatch_payload is not None and task.dispatch_payload.file:
        write_payload(root, task.name, task.dispatch_payload.file, base64.b64decode(payload))


def write_payload(root: str, task: str, file: str, payload: bytes) -> None:
    """Write a dispatch's payload into the task's local directory, unless it is there.

    No link is followed out of it, whatever the allocation before has left in there. Raises
    `Invalid` when the name leads out of it, or `OSError`.
    """
    local = f"{root}/{task}/local"
    try:
        with suppress(FileNotFoundError):
            os.close(open_beneath(local, file, os.O_PATH | os.O_NOFOLLOW))
            return
        write_beneath(local, file, payload, mode=0o644)
    except Escapes:
        raise Invalid(f"payload file {file!r} is outside of the task's local directory") from None


def remove(root: str) -> None:
    """Remove the directory of an allocation, also where a task has locked its owner out.

    It goes under another name first: nobody finds a half of it.
    """
    if not root.endswith(_GONE):
        with suppress(OSError):  # it is not there, or another such is
            os.rename(root, f"{root}{_GONE}")
            root = f"{root}{_GONE}"
    remove_tree(root)
    if not os.path.lexists(root):
        return
    # Another sweep may have removed it meanwhile; and a tree may be deeper than the library can go.
    with suppress(RecursionError, OSError):
        top = open_directory(root)
        _unlock(top)
        for _, names, _, above in os.fwalk(root):
            for name in names:
                with suppress(OSError):
                    step = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    _unlock(os.open(name, step, dir_fd=above))
    remove_tree(root)


def _unlock(descriptor: int) -> None:
    """Let the owner of an open directory into it, and close it: a locked one opens for no more than that."""
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IRWXU)
    finally:
        os.close(descriptor)


def remove_tree(root: str) -> None:
    """Remove a directory, however deep a task has made it: the library's own way is recursive."""
    try:
        shutil.rmtree(root, ignore_errors=True)
    except RecursionError:
        with suppress(OSError):
            subprocess.run(  # noqa: S603  # no word of it is a task's
                ["rm", "-rf", "--", root],  # noqa: S607  # found on our own search path
                check=False,
                capture_output=True,
                env={"PATH": PATH},
            )


def below(root: str) -> Iterator[os.stat_result]:
    """Yield what is known of each file and directory below another; what cannot be seen is left out."""
    folders = [root]
    while folders:
        # Whoever removes or locks something meanwhile has it not counted.
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)


def present(alloc_dir: Path) -> list[str]:
    """Return the ids of the allocations that have a directory."""
    try:
        entries = list(os.scandir(alloc_dir))
    except FileNotFoundError:  # somebody has removed it; it is made again when it is needed
        return []
    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def is_fetched(root: str, task: str) -> bool:
    """Tell whether everything that a task brings along has been fetched."""
    return os.path.lexists(f"{root}/{_FETCHED}{task}")


def note_fetched(root: str, task: str) -> None:
    """Remember that everything that a task brings along has been fetched."""
    Path(f"{root}/{_FETCHED}{task}").touch(mode=0o600)
