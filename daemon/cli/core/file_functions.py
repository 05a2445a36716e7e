"""File functions of job files. Paths are relative to the job file's directory."""

import base64
import glob
import os
import re
from collections.abc import Callable
from pathlib import Path

from daemon.jobspec.hcl.scope import MAX_TEXT, FunctionFault
from daemon.jobspec.hcl.values import STRING, Value, make_set

MAX_FOUND = 10_000  # files in a set
_CHOICE = re.compile(r"\{([^{}]*)\}")


def functions(directory: Path) -> Callable[[str, tuple[Value, ...]], Value]:
    """Return a function that calls a file function by name."""
    return _Files(directory).call


class _Files:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def call(self, name: str, values: tuple[Value, ...]) -> Value:
        """Return the result of a file function. Raises `FunctionFault`."""
        path, *rest = [str(value) for value in values]
        try:
            match name:
                case "file":
                    return self._text(path)
                case "filebase64":
                    return base64.b64encode(self._content(path)).decode()
                case "fileexists":
                    return self._exists(path)
                case "fileset":
                    return self._found(path, rest[0])
                case "abspath":
                    return str(Path(path).absolute())
                case "pathexpand":
                    return str(Path(path).expanduser()) if path.startswith("~") else path
                case "dirname":
                    return os.path.dirname(path) or "."
                case _:
                    return os.path.basename(path.rstrip("/")) or path[:1] or "."
        except (OSError, ValueError, RuntimeError) as error:
            raise FunctionFault(f"{path}: {getattr(error, 'strerror', None) or error}") from error

    def _resolve_path(self, path: str) -> Path:
        return self._directory / Path(path).expanduser()

    def _content(self, path: str) -> bytes:
        with self._resolve_path(path).open("rb") as file:
            content = file.read(MAX_TEXT + 1)
        if len(content) > MAX_TEXT:
            raise FunctionFault(f"{path} has more than {MAX_TEXT} bytes")
        return content

    def _text(self, path: str) -> str:
        try:
            return self._content(path).decode()
        except UnicodeDecodeError as error:
            raise FunctionFault(
                f"the contents of {path} are not valid UTF-8; use filebase64 for them"
            ) from error

    def _exists(self, path: str) -> bool:
        resolved = self._resolve_path(path)
        if resolved.is_dir():
            raise FunctionFault(f"{path} is a directory, not a file")
        return resolved.exists()

    def _found(self, path: str, pattern: str) -> Value:
        """Return the files below a directory whose paths match a pattern."""
        root = self._resolve_path(path)
        paths: set[str] = set()
        for alternative in _alternatives(pattern):
            for name in glob.iglob(alternative, root_dir=root, recursive=True, include_hidden=True):
                if (root / name).is_file():
                    paths.add(Path(name).as_posix())
                if len(paths) > MAX_FOUND:
                    raise FunctionFault(f"more than {MAX_FOUND} files match {pattern!r}")
        return make_set(STRING, sorted(paths))


def _alternatives(pattern: str) -> list[str]:
    """Expand a pattern with alternatives, such as `*.{yml,yaml}`, into patterns without them."""
    match = _CHOICE.search(pattern)
    if match is None:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [
        alternative
        for choice in match[1].split(",")
        for alternative in _alternatives(f"{before}{choice}{after}")
    ]
