"""Copy files of this host for `file` artifacts, from the permitted directories.

The configuration lists the permitted directories. Tasks and users may write to them. So each file
is opened below the permitted directory without following links, and the copy is made from the open
descriptor. A link that another user creates after the check is refused. A hard link could give
access to another user's secret. Therefore a file with several hard links must be readable by all
users.
"""

import os
import stat
from collections.abc import Callable, Sequence

from daemon.launcher.safe_open import resolver
from daemon.net.egress_policy import EgressDenied
from daemon.runner.setup.artifacts.archive import ArchiveLimits, BadArchive

_DEEPEST = 64  # maximum depth of nested directories
_PIECE = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LocalFiles:
    """Copies one file or directory within limits; `check` can abort by raising an exception."""

    def __init__(
        self, permitted: Sequence[str], limits: ArchiveLimits, check: Callable[[], None]
    ) -> None:
        self._permitted, self._limits, self._check = permitted, limits, check
        self._bytes = self._files = 0

    def copy(self, path: str, target: str) -> None:
        """Copy a file to `{target}/file`, or a directory to `{target}/tree`.

        Raises `EgressDenied`, `BadArchive` or `OSError`.
        """
        path = os.path.realpath(path)
        above = next(
            (permitted for permitted in self._permitted if _is_below(path, permitted)), None
        )
        if above is None:
            raise EgressDenied(
                f"files from {path} are not permitted: add its directory to artifact_paths"
                " in the daemon's configuration"
            )
        top = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            source = resolver(follows=False)(top, os.path.relpath(path, above), _READ)
        finally:
            os.close(top)
        try:
            if stat.S_ISDIR(os.fstat(source).st_mode):
                self._copy_folder(source, f"{target}/tree", 0)
            else:
                self._copy_file(source, path, f"{target}/file")
        finally:
            os.close(source)

    def _copy_folder(self, source: int, target: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise BadArchive(f"its directories are nested more than {_DEEPEST} levels deep")
        os.mkdir(target, 0o700)
        with os.scandir(source) as entries:
            for entry in entries:
                self._check()
                self._count(1, 0)
                self._copy_entry(source, entry.name, f"{target}/{entry.name}", depth)
        os.chmod(target, 0o700 | stat.S_IMODE(os.fstat(source).st_mode) & 0o777)

    def _copy_entry(self, above: int, name: str, target: str, depth: int) -> None:
        facts = os.stat(name, dir_fd=above, follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            os.symlink(os.readlink(name, dir_fd=above), target)  # checked with the whole tree
            return
        source = resolver(follows=False)(above, name, _READ)
        try:
            if stat.S_ISDIR(os.fstat(source).st_mode):
                self._copy_folder(source, target, depth + 1)
            else:
                self._copy_file(source, name, target)
        finally:
            os.close(source)

    def _copy_file(self, source: int, name: str, target: str) -> None:
        facts = os.fstat(source)
        if not stat.S_ISREG(facts.st_mode):
            raise BadArchive(f"{name!r} is neither a file nor a directory")
        if facts.st_nlink > 1 and not facts.st_mode & stat.S_IROTH:
            raise EgressDenied(
                f"{name!r} has {facts.st_nlink} hard links and is not world-readable: copy it"
            )
        with open(source, "rb", closefd=False) as file, open(target, "xb") as copy:
            while chunk := file.read(_PIECE):
                self._check()
                self._count(0, len(chunk))
                copy.write(chunk)
        os.chmod(target, stat.S_IMODE(facts.st_mode) & 0o777)

    def _count(self, files: int, size: int) -> None:
        self._files, self._bytes = self._files + files, self._bytes + size
        if self._files > self._limits.files or self._bytes > self._limits.bytes:
            raise BadArchive(
                f"it exceeds the limit of {self._limits.files} files with {self._limits.bytes} bytes"
            )


def _is_below(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above.rstrip('/')}/")
