"""The directories of an allocation, made before any of its tasks runs.

    <allocation>/            ours: users of its tasks may pass, others may not
        alloc/               shared by its tasks: data, logs, tmp
        <task>/              local, secrets, private, tmp

A task directory belongs to the user of its task, and nobody else may enter it. Where all tasks of an
allocation have one user, that user owns the shared `data` and `tmp`; otherwise both are open to all
users who may pass. Shared directories are sticky: no task can put another thing in the place of
what we, or another user's task, have made there.

Everything is made below an open descriptor, without following a link. A directory that is there
already is taken only if it is ours or belongs to the user for whom it is made.
"""

import errno
import os
import stat
import struct
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress

from daemon.launcher.messages import Layout, Owner, Room
from daemon.launcher.places import LOGS, SHARED, below, is_at_work

ABOUT = ".about"  # whose the logs of the allocation are
LOCAL, SECRETS, PRIVATE, TMP, DATA = "local", "secrets", "private", "tmp", "data"
ANYBODY: Owner = (-1, -1)  # users that nobody knows: those of a container's image
# The list of users in the form in which the kernel takes it (acl(5), <linux/posix_acl_xattr.h>).
_ACL, _ACL_VERSION, _NO_ID = "system.posix_acl_access", 2, 0xFFFFFFFF
_ACL_OWNER, _ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_ABOVE, _OPEN, _STICKY, _PRIVATE, _READABLE = 0o711, 0o777, 0o1777, 0o700, 0o644
_STEP = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def ours() -> Owner:
    """Return our own user and group."""
    return os.geteuid(), os.getegid()


def lay_out(
    directory: str, allocation: str, previous: str | None, layout: Layout
) -> dict[str, str]:
    """Make the directories of an allocation; return the tasks that got none, and why.

    `previous` is the allocation in whose place it comes, if its data is to be kept. Raises `OSError`.
    """
    if not os.path.isdir(directory):  # somebody has removed that of all allocations
        os.makedirs(directory)
        os.chmod(directory, _ABOVE)
    troubles = {}
    with ExitStack() as opened:
        above = opened.enter_context(below(directory))
        source = None
        if previous is not None:
            with suppress(FileNotFoundError):
                source = opened.enter_context(below(above, previous))
                if is_at_work(source):
                    raise OSError(errno.EBUSY, f"a task of {previous} is at work", previous)
        home = opened.enter_context(_made(above, allocation, None, ours()))
        _make_shared(home, {one.owner or ours() for one in layout.rooms}, source)
        _describe(home, layout.about)
        for room in layout.rooms:
            try:
                _make_room(home, room, source)
            except OSError as error:
                troubles[room.task] = str(error)
    return troubles


def _make_shared(home: int, users: Collection[Owner], previous: int | None) -> None:
    """Make what the tasks of an allocation share. `users` are their owners. Raises `OSError`."""
    us = ours()
    users = frozenset(users) or {us}
    others = users - {us}
    around = _STICKY if others else _PRIVATE
    is_one = len(users) == 1 and ANYBODY not in users
    mode, owner = (_PRIVATE, next(iter(users))) if is_one else (_STICKY, us)
    let_pass(home, {uid for uid, _ in others - {ANYBODY}})
    with _made(home, SHARED, around, us) as shared:
        with _made(shared, LOGS, around, us):
            pass
        _hand_on(previous, SHARED, DATA, shared)
        for name in (DATA, TMP):
            with _made(shared, name, mode, owner, is_handed_on=previous is not None):
                pass


def _make_room(home: int, room: Room, previous: int | None) -> None:
    """Make the directory of a task. Raises `OSError`.

    One that its task does not see, as behind walls, is ours: so nobody can replace the directories
    in it that are mounted.
    """
    if room.task == SHARED:
        raise FileExistsError(errno.EEXIST, "the tasks of an allocation share it", room.task)
    us, owner = ours(), room.owner or ours()
    is_open = owner == ANYBODY
    whose = us if is_open else owner
    mode = _OPEN if is_open else _PRIVATE
    with _made(home, room.task, _PRIVATE, whose if room.is_seen else us) as inside:
        _hand_on(previous, room.task, LOCAL, inside)
        for name, rights, user in (
            (LOCAL, mode, whose),
            (SECRETS, mode, whose),
            (PRIVATE, _PRIVATE, us),
            (TMP, _STICKY if is_open else _PRIVATE, whose),
        ):
            is_handed_on = previous is not None or is_open
            with _made(inside, name, rights, user, is_handed_on=is_handed_on):
                pass


@contextmanager
def _made(
    above: int, name: str, mode: int | None, owner: Owner, *, is_handed_on: bool = False
) -> Iterator[int]:
    """Give a descriptor of a directory that has exactly this mode and owner. Raises `OSError`.

    None leaves the mode of one that is there. One that another allocation has handed on, or that
    containers share, may have been anybody's.
    """
    with suppress(FileExistsError):
        os.mkdir(name, _PRIVATE, dir_fd=above)
    try:
        descriptor = os.open(name, os.O_RDONLY | _STEP, dir_fd=above)
        is_locked = False
    except PermissionError:  # its task has locked it, and we are that task's user
        descriptor, is_locked = os.open(name, os.O_PATH | _STEP, dir_fd=above), True
    try:
        if not is_locked:
            _settle(descriptor, name, mode, owner, check=not is_handed_on)
        yield descriptor
    finally:
        os.close(descriptor)


def _settle(descriptor: int, name: str, mode: int | None, owner: Owner, *, check: bool) -> None:
    found = os.fstat(descriptor)
    if check and found.st_uid not in (os.geteuid(), owner[0]):
        raise PermissionError(errno.EPERM, f"user {found.st_uid} owns it", name)
    if (found.st_uid, found.st_gid) != owner and os.geteuid() == 0:
        os.fchown(descriptor, *owner)
    if mode is not None and stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(descriptor, mode)


def let_pass(directory: int, users: Collection[int]) -> None:
    """Let these users pass through a directory, and nobody else but us. Raises `OSError`.

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


def _hand_on(previous: int | None, folder: str, name: str, target: int) -> None:
    """Move a directory here from the previous allocation, which has ended.

    Each goes at once and only to where none is yet, so that a second request goes on where a first
    one was cut short. What a task has put in the place of such a directory stays where it is.
    """
    if previous is None:
        return
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=target, follow_symlinks=False)
        return
    with suppress(FileNotFoundError, NotADirectoryError), below(previous, folder) as source:
        if stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _describe(home: int, about: bytes) -> None:
    """Write down whose the logs of an allocation are, unless that is done. Raises `OSError`."""
    with suppress(FileNotFoundError):
        os.stat(ABOUT, dir_fd=home, follow_symlinks=False)
        return
    unfinished = f"{ABOUT}.new"
    with open(os.open(unfinished, _FILE, 0o600, dir_fd=home), "wb") as file:
        os.fchmod(file.fileno(), _READABLE)
        file.write(about)
    os.rename(unfinished, ABOUT, src_dir_fd=home, dst_dir_fd=home)
