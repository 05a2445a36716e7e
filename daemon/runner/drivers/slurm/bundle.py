"""What an attempt brings to its host: an archive with its directories, its command and its secrets.

alloc/             what the allocation shares, without its logs
<task>/            local and secrets, with what was fetched, rendered and handed over
.steward/          the wrapper's: settings, the script that becomes the task, and one for sessions
"""

import io
import shlex
import tarfile
from collections.abc import Mapping
from typing import IO

import msgspec

from daemon.runner.drivers import config, shim
from daemon.runner.drivers.driver import Attempt
from daemon.runner.env import Directories
from daemon.runner.taskdir import SECRETS, SHARED, directories
from storage.records.base import SECOND

_OWN = ".steward"
_LOGS = f"{SHARED}/logs"
_LATE = 5  # seconds that a wrapper lets us end first what has run for long enough
# Its variables have names that tasks do not use: what a task's environment has would be changed.
_FIND = """\
_steward_c={command}
case $_steward_c in
/*) ;;
*) for _steward_p in "$PWD/local/$_steward_c" "$PWD/$_steward_c"; do
    if [ -f "$_steward_p" ] && [ -x "$_steward_p" ]; then _steward_c=$_steward_p; break; fi
done ;;
esac
command -v -- "$_steward_c" >/dev/null 2>&1 || {{ echo missing >{own}/why; exit 127; }}
"""


class Settings(msgspec.Struct, frozen=True):
    """What a task may give the driver; as `raw_exec`."""

    command: str
    args: list[str] = []
    work_dir: str = ""


def home_of(folder: str, attempt: Attempt) -> str:
    """Return where an attempt lives on its host; `folder` is the pool's."""
    return f"{folder}/steward-{attempt.alloc_id}-{attempt.task}"


def places_of(folder: str, alloc_id: str, task: str) -> Directories:
    """Return where a task finds its directories on its host."""
    return directories(f"{folder}/steward-{alloc_id}-{task}", task)


def pack(file: IO[bytes], attempt: Attempt, home: str, secret: str) -> None:
    """Write the archive of an attempt that lives at `home` on its host. Raises `OSError`.

    `secret` is what its wrapper shows from now on.
    """
    settings = config.read(Settings, attempt.config)
    own, place = f"{home}/{_OWN}", shlex.quote(settings.work_dir or f"{home}/{attempt.task}")
    enter = f"cd -- {place} || exit 125\nunset OLDPWD\n"
    command = shlex.quote(settings.command)
    find = _FIND.format(command=command, own=shlex.quote(own))
    args = " ".join(['"$_steward_c"', *map(shlex.quote, settings.args)])
    most = attempt.longest // SECOND + _LATE if attempt.longest else 0
    said = f"secret={secret} logs={int(not attempt.log.disabled)} most={most}\n"
    texts = {
        "settings": said,
        "task": shim.script(attempt.env, f"{enter}{find}", args),
        "session": shim.script(attempt.env, enter, '"$@"'),
    }
    _write(file, attempt, texts)


def pack_files(file: IO[bytes], attempt: Attempt) -> None:
    """Write an archive with the files alone, as they are now. Raises `OSError`."""
    _write(file, attempt, {})


def _write(file: IO[bytes], attempt: Attempt, texts: Mapping[str, str]) -> None:
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
        for name, text in texts.items():
            found = tarfile.TarInfo(f"{_OWN}/{name}")
            data = text.encode("utf-8", "surrogateescape")
            found.size, found.mode = len(data), 0o600
            archive.addfile(found, io.BytesIO(data))
        task = attempt.task
        for name in (SHARED, f"{task}/local", f"{task}/{SECRETS}"):
            if texts or name != SHARED:
                archive.add(f"{attempt.directory}/{name}", name, filter=_plain)


def _plain(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return what goes along, as nobody's: files, directories and links, but no logs."""
    if found.name.startswith(f"{_LOGS}/") or not (
        found.isfile() or found.isdir() or found.issym() or found.islnk()
    ):
        return None
    found.uid = found.gid = 0
    found.uname = found.gname = ""
    return found
