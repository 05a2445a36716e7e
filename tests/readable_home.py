"""A mount namespace in which an ordinary user can read the program.

A developer's virtual environment is often in a home directory that others cannot enter. The
daemon's user must be able to read the program. So the tests mount a readable directory with the
same contents over such a home.
"""

import os
import shlex
import stat
from pathlib import Path

from daemon.process.service_account import program_directories

UID = 61234  # `nobody` on the host; no account is needed


def entering(*more: Path) -> tuple[str, ...]:
    """Return the command prefix with which any user can read the program and `more`."""
    wanted = [
        Path(program_directory)
        for program_directory in (*program_directories(), *map(str, more))
        if Path(program_directory).exists()
    ]
    closed: dict[Path, set[str]] = {}
    for path in wanted:
        for above in reversed(path.parents):
            if not above.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(above, set()).add(path.relative_to(above).parts[0])
                break
    lines = ["set -e", "place=$(mktemp -d)", 'mount -t tmpfs tmpfs "$place"']
    for number, (above, names) in enumerate(sorted(closed.items())):
        here, kept = shlex.quote(str(above)), f'"$place"/{number}'
        lines.append(f"mkdir {kept}")
        lines.append(f"mount --rbind {here} {kept}")
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {here}")
        for name in map(shlex.quote, sorted(names)):
            lines.append(f"mkdir {here}/{name}")
            lines.append(f"mount --rbind {kept}/{name} {here}/{name}")
    lines += ['umount -l "$place"', 'rmdir "$place"', 'exec "$@"']
    script = "\n".join(lines)
    return "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"


def can_enter() -> bool:
    """Return whether the host permits mount namespaces."""
    return os.geteuid() == 0 and not os.system(f"{shlex.join(entering())} true >/dev/null 2>&1")  # noqa: S605  # constant words
