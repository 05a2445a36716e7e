"""Append a directory tree to the single-file launcher: `pack.py LAUNCHER TREE FILE`.

FILE consists of the launcher, a gzip archive of the tree, and a trailer. The archive has the
entries of the tree, sorted by name. Each entry is a line `KIND MODE SIZE PATH` and SIZE bytes. The
line `.` is the end of the archive. The trailer has the offset and the length of the archive (16 hexadecimal
digits each), its SHA-256, and a magic word. The output is reproducible: it contains no times and no
paths of the build host.
"""

import gzip
import hashlib
import io
import sys
from pathlib import Path

MAGIC = b"STEWARD1"


def entry(tree: Path, path: Path) -> bytes:
    """Return the entry of a directory, a symbolic link or a file, with its executable bit."""
    name = path.relative_to(tree)
    if path.is_symlink():
        kind, mode, content = "L", 0o777, str(path.readlink()).encode()
    elif path.is_dir():
        kind, mode, content = "D", 0o755, b""
    else:
        kind, mode, content = (
            "F",
            0o755 if path.stat().st_mode & 0o100 else 0o644,
            path.read_bytes(),
        )
    return f"{kind} {mode:o} {len(content)} {name}\n".encode() + content


def pack(launcher: Path, tree: Path, target: Path) -> None:
    """Write the single-file program."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0, filename="") as out:
        for path in sorted(tree.rglob("*")):
            out.write(entry(tree, path))
        out.write(b".\n")
    payload, front = packed.getvalue(), launcher.read_bytes()
    trailer = f"{len(front):016x}{len(payload):016x}{hashlib.sha256(payload).hexdigest()}"
    target.write_bytes(front + payload + trailer.encode() + MAGIC)
    target.chmod(0o755)


if __name__ == "__main__":
    pack(*map(Path, sys.argv[1:4]))
