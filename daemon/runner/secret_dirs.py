"""Secrets of tasks in memory: a small tmpfs over the `secrets` directory of a task that is given any.

It is mounted before the task begins and unmounted when its allocation has ended, by whichever daemon
lives then. A daemon that is not root, or may not mount, leaves the directory as it is: on the disk,
where only the task's user can read it.

A service of systemd sees the machine through mounts of its own, which end with it: then what is
mounted must be mounted where everybody sees it, or the next daemon would find nothing there.
"""

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Sequence

import trio

from daemon.launcher.directories import ANYBODY, ours
from daemon.launcher.messages import Owner
from daemon.runner.drivers.shim import PATH

_SOURCE = "steward"  # by which our mounts are known
_LEAST = 4  # MiB
_OPTIONS = "nosuid,nodev,noexec,nr_inodes=1024"
_OURS, FIRST = "/proc/self/ns/mnt", "/proc/1/ns/mnt"  # the mounts that a process sees
# No link that a task might have put there is followed, neither by the shell nor by what it starts.
# Other users see the arguments, so the place is a variable.
_MOUNT = 'cd -P "$PLACE" && [ "$(pwd -P)" = "$PLACE" ] && exec mount -c -t tmpfs -o "$1" "$2" .'
_UNMOUNT = 'cd -P "$PLACE" && [ "$(pwd -P)" = "$PLACE" ] && exec umount -c -l .'
_ESCAPED = re.compile(r"\\([0-7]{3})")

_log = logging.getLogger("steward.runner")


def is_elsewhere(place: str) -> bool:
    """Tell whether all others see a directory of ours through mounts that are not this process's."""
    try:
        if os.readlink(_OURS) == os.readlink(FIRST):
            return False
        return os.path.samestat(os.stat(place), os.stat(f"/proc/1/root{place}"))
    except OSError:  # the first process is somebody else's, or sees other files
        return False


def way_to_all(place: str) -> list[str]:
    """Return the words before a command that mounts where all see it, as a directory of ours tells."""
    nsenter = shutil.which("nsenter", path=PATH)
    return [nsenter, f"--mount={FIRST}"] if nsenter and is_elsewhere(place) else []


def mounted(below: str) -> list[str]:
    """Return the directories below another one that are ours in memory."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            words, (kind, source, *_) = _parts(line)
            place = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), words[4])
            if (kind, source) == ("tmpfs", _SOURCE) and place.startswith(f"{below}/"):
                found.append(place)
    return found


def _parts(line: str) -> tuple[list[str], list[str]]:
    """Return the words before the dash, where the fields are that may be many, and those after it."""
    before, _, after = line.partition(" - ")
    return before.split(" "), after.split(" ")


def _rights(owner: Owner) -> str:
    """Return the options for whom it is; the task directory above it lets in no stranger to `ANYBODY`'s."""
    return "mode=0777" if owner == ANYBODY else f"mode=0700,uid={owner[0]},gid={owner[1]}"


def _is_empty(place: str) -> bool:
    try:
        return not os.listdir(place)
    except OSError:  # a task has removed it, or put something else in its place
        return False


class SecretDirs:
    """What keeps secrets in memory below the directory of all allocations."""

    def __init__(self, alloc_dir: str) -> None:
        self._top = os.path.realpath(alloc_dir)
        self._given = alloc_dir
        self._way = way_to_all(self._top)
        self._may = os.geteuid() == 0
        self._mounted = set(mounted(self._top))

    async def seclude(self, directory: str, megabytes: int, owner: Owner | None = None) -> None:
        """Let a directory be in memory, unless it is, or something lies in it already.

        It belongs to `owner`, or else to the daemon, and nobody else can enter it.
        """
        place = self._real(directory)
        if not self._may or place in self._mounted or not _is_empty(place):
            return
        options = f"size={max(megabytes, _LEAST)}m,{_OPTIONS},{_rights(owner or ours())}"
        problem = await self._run(place, ["sh", "-c", _MOUNT, "sh", options, _SOURCE])
        if problem:
            _log.warning("secrets lie on the disk, at %s: %s", place, problem)
        else:
            self._mounted.add(place)

    async def release(self, directory: str = "") -> None:
        """Empty what is in memory below a directory, or of all allocations."""
        below = self._real(directory) if directory else self._top
        for place in [one for one in self._mounted if one.startswith(f"{below}/")]:
            self._mounted.discard(place)
            problem = await self._run(place, ["sh", "-c", _UNMOUNT])
            if problem:
                _log.warning("what is mounted at %s stays: %s", place, problem)

    def allocations(self) -> set[str]:
        """Return the allocations that have secrets in memory."""
        return {one.removeprefix(f"{self._top}/").partition("/")[0] for one in self._mounted}

    def _real(self, directory: str) -> str:
        return self._top + directory.removeprefix(self._given)

    async def _run(self, place: str, words: Sequence[str]) -> str:
        """Run a command on a place; return what is wrong, or nothing."""
        try:
            done = await trio.run_process(
                [*self._way, *words],
                stdin=b"",
                capture_stderr=True,
                stdout=subprocess.DEVNULL,
                check=False,
                env={"PATH": PATH, "PLACE": place},
            )
        except OSError as error:
            return str(error)
        said = done.stderr.decode(errors="replace").strip()
        return (said or f"status {done.returncode}") if done.returncode else ""
