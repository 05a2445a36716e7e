"""Secrets in memory: a small tmpfs over the `secrets` directory of a task.

The tmpfs has the same owner as the directory, and no other user can enter it. It is unmounted when
the allocation has ended.

A systemd service may have its own mount namespace, which ends with the service. Therefore a child
process of the launcher enters the host's namespace and mounts the tmpfs there. If that is not
permitted, secrets stay on disk.
"""

import ctypes
import os
import re
import stat
from contextlib import suppress

from daemon.launcher.alloc_dir import SECRETS
from daemon.launcher.claims_and_logs import below
from daemon.launcher.hardening import called
from daemon.launcher.safe_open import SECRETS_MOUNT, resolver

_SOURCE = "steward"  # identifies Steward's mounts
_ESCAPED = re.compile(r"\\([0-7]{3})")
OURS, FIRST = "/proc/self/ns/mnt", "/proc/1/ns/mnt"  # mount namespaces of this process and of init
_NOSUID, _NODEV, _NOEXEC, _DETACH = 2, 4, 8, 2  # from sys/mount.h
_LEAST = 4  # MiB
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_elsewhere(path: str) -> bool:
    """Return whether the mount namespace of this process differs from the host's.

    The result is false if `path` is not the same file in both namespaces, or if the
    launcher cannot read the host's namespace.
    """
    try:
        if os.readlink(OURS) == os.readlink(FIRST):
            return False
        return os.path.samestat(os.stat(path), os.stat(f"/proc/1/root{path}"))
    except OSError:  # init belongs to another user, or sees other files
        return False


def step_over(directory: str) -> None:
    """Enter the host's mount namespace, if the path `directory` leads to the same directory there.

    Call this function only in a child. Raises `OSError`.
    """
    if is_elsewhere(directory):
        namespace = os.open(FIRST, os.O_RDONLY | os.O_CLOEXEC)
        called("setns", namespace, 0)
        os.close(namespace)


def mount_secrets(directory: str, allocation: str, task: str, megabytes: int) -> None:
    """Mount a tmpfs for the secrets of a task, unless it is mounted or the directory has files.

    Raises `OSError`.
    """
    with below(directory, allocation, task) as inside:
        source = os.open(SECRETS, _READ, dir_fd=inside)
        try:
            facts = os.fstat(source)
            if facts.st_dev != os.fstat(inside).st_dev or os.listdir(source):
                return
            size = f"size={max(megabytes, _LEAST)}m,nr_inodes=1024"
            rights = f"mode={stat.S_IMODE(facts.st_mode):o},uid={facts.st_uid},gid={facts.st_gid}"
            flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
            path, options = os.fsencode(f"/proc/self/fd/{source}"), f"{size},{rights}".encode()
            called("mount", _SOURCE.encode(), path, b"tmpfs", flags, options)
        finally:
            os.close(source)


def reveal(directory: str, allocation: str) -> None:
    """Delete and unmount the secrets of an allocation, even if tasks have moved them.

    Raises `OSError`.
    """
    home = f"{os.path.realpath(directory)}/{allocation}"
    for path in reversed(mounted(home)):
        # The allocation directory was removed.
        with suppress(FileNotFoundError), below(directory, allocation) as above:
            descriptor = resolver(follows=False)(
                above, path.removeprefix(f"{home}/"), os.O_PATH | os.O_CLOEXEC
            )
            try:
                called("umount2", os.fsencode(f"/proc/self/fd/{descriptor}"), _DETACH)
            finally:
                os.close(descriptor)


def mounted(home: str) -> list[str]:
    """Return Steward's tmpfs mounts below a directory, in mount order."""
    paths = []
    with open("/proc/self/mountinfo", "rb") as lines:  # text mode would also end lines at `\r`
        for raw in lines:
            before, _, after = os.fsdecode(raw).partition(" - ")
            path = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4])
            if after.startswith(SECRETS_MOUNT) and path.startswith(f"{home}/"):
                paths.append(path)
    return paths
