"""Ownership of the store, and its change when the daemon gets another user.

The owner of the store's directory owns all its contents. The change first closes the directory to
all users except root. Then it changes the owner of each entry, and of the directory last. If a
start is interrupted in between, the next start repeats the change.

The previous owner can have created any entry in the directory. So no symbolic link is followed.
Only directories, and files without hard links in other directories, change their owner. For any
other entry, the change stops with an error that contains the path of the entry.
"""

import errno
import os
import stat
from pathlib import Path

from daemon.process.service_account import ROOT, ServiceAccount
from storage.errors import StorageUnusable

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PRIVATE = 0o700


def change_owner(store: Path, account: ServiceAccount) -> bool:
    """Make a user the owner of the store and its contents; return whether the owner changed.

    Only root can change the owner, and only below a directory that root owns. Raises
    `StorageUnusable`.
    """
    try:
        top = os.open(store, _OPEN | os.O_DIRECTORY)
        try:
            if os.fstat(top).st_uid == account.uid:
                return False
            os.fchown(top, ROOT, ROOT)
            os.fchmod(top, _PRIVATE)
            _change_owner(top, store, account)
            os.fchown(top, account.uid, account.gid)
            os.fsync(top)
        finally:
            os.close(top)
    except OSError as error:
        raise StorageUnusable(
            f"{error.filename or store} cannot be given to the user {account.name}: {error.strerror}; "
            "move it away, or change its owner"
        ) from error
    return True


def _change_owner(directory: int, path: Path, account: ServiceAccount) -> None:
    for name in sorted(os.listdir(directory)):
        entry_path = path / name
        try:
            descriptor = os.open(name, _OPEN, dir_fd=directory)
        except OSError as error:
            raise OSError(error.errno, _reason(error), str(entry_path)) from error
        try:
            facts = os.fstat(descriptor)
            if stat.S_ISDIR(facts.st_mode):
                os.fchown(descriptor, ROOT, ROOT)  # so no other user can add entries
                _change_owner(descriptor, entry_path, account)
            elif not stat.S_ISREG(facts.st_mode):
                raise OSError(errno.EINVAL, "it is neither a file nor a directory", str(entry_path))
            elif facts.st_nlink != 1 and not _has_all_links_here(directory, facts):
                raise OSError(
                    errno.EMLINK, "it is also linked from another directory", str(entry_path)
                )
            os.fchown(descriptor, account.uid, account.gid)
        finally:
            os.close(descriptor)


def _has_all_links_here(directory: int, facts: os.stat_result) -> bool:
    """Return whether all hard links of a file are in `directory`.

    An interrupted restore of a snapshot can leave two such links.
    """
    with os.scandir(directory) as entries:
        return facts.st_nlink == sum(entry.inode() == facts.st_ino for entry in entries)


def _reason(error: OSError) -> str:
    return "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
