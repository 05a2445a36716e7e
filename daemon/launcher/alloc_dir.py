"""Create the directories of an allocation before its tasks run.

    <allocation>/            owned by the launcher; only users of its tasks may traverse it
        alloc/               shared by the tasks: data, logs, tmp
        <task>/              local, secrets, private, tmp

A task directory belongs to the task's user, and no other user may enter it. If all tasks of an
allocation have the same user, that user owns the shared `data` and `tmp`. Otherwise both are open
to all users who may traverse the directory. Shared directories are sticky, so no task can replace
files of the launcher or of another user's task.

Everything is created relative to an open descriptor, without following links. An existing directory
is used only if it belongs to the launcher or to the user that it is created for.
"""

import errno
import os
import stat
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from daemon.launcher.channel import NO_DESCRIPTOR
from daemon.launcher.claims_and_logs import LOGS, SHARED, below, is_at_work, put
from daemon.launcher.messages import AllocDirLayout, Owner, TaskDirLayout
from daemon.launcher.safe_open import facts_of, step

ABOUT = ".about"  # describes the owner of the logs
LOCAL, SECRETS, PRIVATE, TMP, DATA = "local", "secrets", "private", "tmp", "data"
ANYBODY: Owner = (-1, -1)  # users of a container's image, which are unknown here
# The binary format of ACLs (acl(5), <linux/posix_acl_xattr.h>).
_ACL, _ACL_VERSION, _NO_ID = "system.posix_acl_access", 2, 0xFFFFFFFF
_ACL_OWNER, _ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_ABOVE, _OPEN, _STICKY, _PRIVATE, _READABLE = 0o711, 0o777, 0o1777, 0o700, 0o644
_STEP = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def own_ids() -> Owner:
    """Return the user ID and group ID of the launcher, which is this process."""
    return os.geteuid(), os.getegid()


def make_root(directory: str) -> None:
    """Create the directory that contains all allocations; users of tasks may traverse it.

    Raises `OSError`.
    """
    os.makedirs(directory, exist_ok=True)
    os.chmod(directory, _ABOVE)


def lay_out(
    directory: str,
    allocation: str,
    previous: str | None,
    layout: AllocDirLayout,
    owners: Sequence[Owner | None],
    guest: Owner | None = None,
) -> dict[str, str]:
    """Create the directories of an allocation; return the errors by task.

    The result has only the tasks whose directory could not be created. `previous` is the replaced
    allocation; its data moves to the new allocation. `owners` has the user of each task, None for the
    launcher's user. `guest` is the user who runs containers. Raises `OSError`, also if a directory
    lacks only a file descriptor.
    """
    owners_to_set = [requested or own_ids() for requested in owners]
    guest = guest if guest and ANYBODY in owners_to_set else own_ids()
    if not os.path.isdir(directory):  # the directory of all allocations was removed
        make_root(directory)
    failures = {}
    with ExitStack() as opened:
        above = opened.enter_context(below(directory))
        source = None
        if previous is not None:
            # The directory of the previous allocation may have been removed.
            with suppress(FileNotFoundError):
                source = opened.enter_context(below(above, previous))
                if is_at_work(source):
                    raise OSError(errno.EBUSY, f"a task of {previous} is running", previous)
        home = opened.enter_context(made(above, allocation, None, own_ids()))
        _make_shared(home, owners_to_set, source, guest)
        _describe(home, layout.about)
        for room_of_task, owner in zip(layout.rooms, owners_to_set, strict=True):
            try:
                _make_task_directory(home, room_of_task, owner, source, guest)
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    raise
                failures[room_of_task.task] = str(error)
    return failures


def _make_shared(home: int, users: Collection[Owner], previous: int | None, guest: Owner) -> None:
    """Create the directory that all tasks share. Raises `OSError`.

    `users` are the users of the tasks, and `guest` is the user who runs containers.
    """
    us = own_ids()
    users = frozenset(users) or {us}
    other_uids = users - {us}
    permissions = _STICKY if other_uids else _PRIVATE
    is_one = len(users) == 1 and ANYBODY not in users
    mode, owner = (_PRIVATE, next(iter(users))) if is_one else (_STICKY, us)
    permit_traversal(home, {uid for uid, _ in {*other_uids, guest} - {ANYBODY, us}})
    with made(home, SHARED, permissions, us) as shared:
        with made(shared, LOGS, permissions, us):
            pass
        _migrate_directory(previous, SHARED, DATA, shared)
        for name in (DATA, TMP):
            with made(shared, name, mode, owner, is_handed_on=previous is not None):
                pass


def _make_task_directory(
    home: int, spec: TaskDirLayout, owner: Owner, previous: int | None, guest: Owner
) -> None:
    """Create the directory of a task. Raises `OSError`.

    The launcher owns the directory if the task cannot see it, as in a sandbox. No user can then
    replace the subdirectories, which are mounted into the sandbox.
    """
    if spec.task == SHARED:
        raise FileExistsError(errno.EEXIST, "name reserved for the shared directory", spec.task)
    us = own_ids()
    is_open = owner == ANYBODY
    owner_to_set = guest if is_open else owner
    mode = _OPEN if is_open else _PRIVATE
    with made(home, spec.task, _PRIVATE, owner_to_set if spec.is_seen or is_open else us) as inside:
        _migrate_directory(previous, spec.task, LOCAL, inside)
        for name, rights, user in (
            (LOCAL, mode, owner_to_set),
            (SECRETS, mode, owner_to_set),
            (PRIVATE, _PRIVATE, us),
            (TMP, _STICKY if is_open else _PRIVATE, owner_to_set),
        ):
            is_handed_on = previous is not None or is_open
            with made(inside, name, rights, user, is_handed_on=is_handed_on):
                pass


@contextmanager
def made(
    above: int, name: str, mode: int | None, owner: Owner, *, is_handed_on: bool = False
) -> Iterator[int]:
    """Create a directory if needed, set its mode and owner, and yield a descriptor of it.

    A mode of None keeps the mode of an existing directory. With `is_handed_on`, an existing
    directory may belong to any user, because it was migrated or containers share it. Raises
    `OSError`, including for an existing directory of an unexpected owner.
    """
    with suppress(FileExistsError):  # its mode and owner are set below
        os.mkdir(name, _PRIVATE, dir_fd=above)
    try:
        descriptor = step(above, name, os.O_RDONLY | _STEP)
        is_locked = False
    except PermissionError:  # a task with the launcher's user removed the permissions
        descriptor, is_locked = step(above, name, os.O_PATH | _STEP), True
    try:
        if not is_locked:
            _settle(descriptor, name, mode, owner, check=not is_handed_on)
        yield descriptor
    finally:
        os.close(descriptor)


def _settle(descriptor: int, name: str, mode: int | None, owner: Owner, *, check: bool) -> None:
    facts = os.fstat(descriptor)
    if check and facts.st_uid not in (os.geteuid(), owner[0]):
        raise PermissionError(errno.EPERM, f"unexpected owner: user {facts.st_uid}", name)
    if (facts.st_uid, facts.st_gid) != owner and os.geteuid() == 0:
        os.fchown(descriptor, *owner)
    if mode is not None and stat.S_IMODE(facts.st_mode) != mode:
        os.fchmod(descriptor, mode)


def permit_traversal(directory: int, users: Collection[int]) -> None:
    """Permit exactly these users to traverse a directory. Raises `OSError`.

    The users are listed in an ACL. On a file system without ACLs, all users can traverse it.
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


def _migrate_directory(previous: int | None, folder: str, name: str, target: int) -> None:
    """Move `folder/name` from the previous, ended allocation to the directory `target`.

    The move is atomic, and an existing target is kept. A repeated request therefore continues an
    interrupted move. If a task replaced the directory with a file of another type, nothing is
    moved.
    """
    if previous is None:
        return
    with suppress(FileNotFoundError):  # nothing was moved there yet
        facts_of(target, name)
        return
    # There may be nothing to move, or a task has replaced the directory.
    with suppress(FileNotFoundError, NotADirectoryError), below(previous, folder) as source:
        if stat.S_ISDIR(facts_of(source, name).st_mode):
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _describe(home: int, description: bytes) -> None:
    """Write the file that describes the owner of the logs, unless it exists. Raises `OSError`."""
    with suppress(FileNotFoundError):  # it is written below
        os.stat(ABOUT, dir_fd=home, follow_symlinks=False)
        return
    put(home, ABOUT, description, _READABLE)
