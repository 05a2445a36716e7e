"""A separate user ID for each allocation, from a range without accounts on the host.

<tasks>/uids/<allocation> -> 80001

A symbolic link stores the user ID of an allocation. It is created before the first directory of the
allocation, and removed after the last directory. A user ID that owns files is therefore never
assigned twice, even if the launcher is killed at any moment. An allocation that inherits the data
of another allocation also inherits the user ID. The link of the old allocation is marked. So the ID
is not transferred twice, and no task of the old allocation starts with it. An allocation with a
directory but without a link was started by a version of Steward without separate user IDs.
"""

import errno
import grp
import os
import pwd
from contextlib import suppress

from daemon.launcher.alloc_removal import GONE
from daemon.launcher.channel import Refusal
from daemon.launcher.claims_and_logs import below
from daemon.launcher.messages import Span

UIDS = "uids"  # next to the directory of all allocations
_AS_BEFORE = "none"  # target of a link of an allocation without an ID
_HANDED_ON = " handed on"  # suffix of an ID that another allocation has taken over
_NEW = ".new"  # suffix of a link that is about to replace another
_USABLE = range(1000, 2**32 - 2)
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class AllocUids:
    """The user IDs that one launcher assigns from `span`; `directory` holds all allocations."""

    def __init__(self, directory: str, span: Span) -> None:
        """Load the links, and delete links of allocations without a directory. Raises `OSError`."""
        self._directory, self._numbers = directory, range(span[0], span[1] + 1)
        self._folder = f"{os.path.dirname(directory)}/{UIDS}"
        os.makedirs(self._folder, 0o700, exist_ok=True)
        with below(self._folder) as folder:
            descriptor = os.open(".", _READ, dir_fd=folder)
            try:
                # An earlier version may have made the daemon's user the owner of the directory.
                if os.geteuid() == 0:
                    os.fchown(descriptor, 0, 0)
                texts = {name: os.readlink(name, dir_fd=folder) for name in os.listdir(descriptor)}
            finally:
                os.close(descriptor)
            self._texts = {name: text for name, text in texts.items() if self._is_present(name)}
            for name in texts.keys() - self._texts.keys():
                os.unlink(name, dir_fd=folder)
        self._last = span[0] - 1

    def of(self, allocation: str) -> int | None:
        """Return the user ID of an allocation; assign an ID if the allocation has no directory.

        None means that the allocation was started by a version without separate user IDs. Raises
        `Refusal` when another allocation has taken over the ID, or `OSError`, including when all
        IDs are in use.
        """
        text = self._text(allocation)
        if text is None:
            if self._is_present(allocation):
                return None
            text = str(self._free())
            self._keep(allocation, text)
        if text.endswith(_HANDED_ON):
            raise Refusal("another allocation has taken over the user ID of this allocation")
        number = int(text) if text.isdecimal() else 0
        return number if number in _USABLE and not is_account(number) else None

    def inherit(self, allocation: str, previous: str) -> None:
        """Transfer the user ID of an allocation to the allocation that takes over its data.

        Raises `OSError`.
        """
        if allocation in self._texts or self._is_present(allocation):
            return
        if (text := self._text(previous)) is None and self._is_present(previous):
            text = _AS_BEFORE
        if text is None or text.endswith(_HANDED_ON):
            return
        self._keep(allocation, text)
        if text != _AS_BEFORE:
            self._keep(previous, f"{text}{_HANDED_ON}")

    def release(self, allocation: str) -> None:
        """Release the ID of an allocation, unless the allocation still has a directory."""
        if allocation in self._texts and not self._is_present(allocation):
            # An earlier release may have been interrupted.
            with below(self._folder) as folder, suppress(FileNotFoundError):
                os.unlink(allocation, dir_fd=folder)
            del self._texts[allocation]

    def _text(self, allocation: str) -> str | None:
        """Return the text that the link of an allocation stores; None without a link.

        If the ID was transferred to another allocation whose link no longer exists, first give the
        ID back to this allocation.
        """
        text = self._texts.get(allocation)
        if text is None or not text.endswith(_HANDED_ON):
            return text
        number = text.removesuffix(_HANDED_ON)
        if number in self._texts.values():
            return text
        self._keep(allocation, number)
        return number

    def _keep(self, allocation: str, text: str) -> None:
        with below(self._folder) as folder:
            with suppress(FileNotFoundError):  # left by a killed launcher
                os.unlink(_NEW, dir_fd=folder)
            os.symlink(text, _NEW, dir_fd=folder)
            os.rename(_NEW, allocation, src_dir_fd=folder, dst_dir_fd=folder)
        self._texts[allocation] = text

    def _free(self) -> int:
        """Return the first free ID after the last assigned ID, continuing at the range's start.

        Raises `OSError` if no ID is free.
        """
        taken = {text.removesuffix(_HANDED_ON) for text in self._texts.values()}
        numbers, first = self._numbers, self._last + 1 - self._numbers.start
        for step in range(len(numbers)):
            number = numbers[(first + step) % len(numbers)]
            if number in _USABLE and str(number) not in taken and not is_account(number):
                self._last = number
                return number
        raise OSError(
            errno.EUSERS,
            f"all {len(numbers)} user IDs of task_uids are in use: run garbage collection "
            "or configure a wider range",
        )

    def _is_present(self, allocation: str) -> bool:
        """Return whether any directory of an allocation exists, even during its removal."""
        path = f"{self._directory}/{allocation}"
        return os.path.lexists(path) or os.path.lexists(f"{path}{GONE}")


def is_account(number: int) -> bool:
    """Return whether the host has a user or group with this ID."""
    for find in (pwd.getpwuid, grp.getgrgid):
        with suppress(KeyError):  # there is no such account
            find(number)
            return True
    return False
