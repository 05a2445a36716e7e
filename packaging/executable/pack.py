"""Append a tree to the launcher: `pack.py LAUNCHER TREE FILE`.

FILE is the launcher, a gzip of the tree's entries in the order of their names (each a line
`KIND MODE SIZE PATH`, then SIZE bytes; a line `.` ends them), and a trailer: offset and length of the
gzip as 16 hexadecimal digits each, its SHA-256, and a word by which it is known. Nothing in it
depends on when or where it is packed.
"""

import gzip
import hashlib
import io
import sys
from pathlib import Path

MAGIC = b"STEWARD1"


def entry(tree: Path, path: Path) -> bytes:
    """Return an entry: a directory, a link, or a file that keeps whether it can be executed."""
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
    """Write the one file."""
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
