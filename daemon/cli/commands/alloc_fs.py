"""`alloc fs`: list, describe and print the files of an allocation."""

import sys
from collections.abc import Iterator

import click

from daemon.cli.commands.logs import frames, last_lines, newest
from daemon.cli.core import resolve
from daemon.cli.core.formatting import format_api_time
from daemon.cli.core.http_client import ApiClient, ClientResponse, Value, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from storage.records.base import Record

_LINES = 10  # default of -tail
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class FileInfo(Record, frozen=True, kw_only=True):
    """The properties of a file."""

    name: str
    is_dir: bool
    size: int
    file_mode: str
    mod_time: str
    content_type: str = ""


@click.command()
@click.argument("alloc_id", metavar="ALLOCATION")
@click.argument("path", metavar="[PATH]", default="/")
@click.option("-f", "follow", is_flag=True, help="Follow the file as it grows.")
@click.option("--tail", is_flag=True, help=f"Show the end: {_LINES} lines unless -n is given.")
@click.option("-n", "lines", type=Integer(0), help="Number of lines at the end.")
@click.option("-c", "size", type=Integer(0), help="Number of bytes at the end.")
@click.option("--stat", "describe", is_flag=True, help="Describe PATH instead of printing it.")
@click.option(
    "--job", "of_job", is_flag=True, help="ALLOCATION is a job: use its latest allocation."
)
@with_output
@with_client
def fs(
    client: ApiClient,
    screen: Screen,
    alloc_id: str,
    path: str,
    *,
    follow: bool,
    tail: bool,
    lines: int | None,
    size: int | None,
    describe: bool,
    of_job: bool,
) -> None:
    """List a directory or print a file of ALLOCATION; PATH is relative to the allocation directory.

    Example: steward alloc fs 5d3c9a12 web/local/
    """
    allocation = resolve.allocation(client, newest(client, alloc_id) if of_job else alloc_id)
    files = _Files(client, allocation.id, path)
    answer = files.request("stat")
    entry = answer.decode(FileInfo)
    if describe:
        if screen.wants_document:
            screen.document(answer.body)
        else:
            _show(screen, [entry])
    elif entry.is_dir:
        listing = files.request("ls")
        if screen.wants_document:
            screen.document(listing.checked(list[FileInfo]))
        else:
            _show(screen, listing.decode(list[FileInfo]))
    else:
        line_count = lines if lines is not None or not tail else _LINES
        _print(files.pieces(entry.size, follow=follow, lines=line_count, size=size))


def _print(chunks: Iterator[bytes]) -> None:
    out = sys.stdout.buffer
    try:
        for chunk in chunks:
            out.write(chunk)
            out.flush()
    except KeyboardInterrupt:
        return


def _show(screen: Screen, entries: list[FileInfo]) -> None:
    rows = [
        [entry.file_mode, readable(entry.size), format_api_time(entry.mod_time), _name(entry)]
        for entry in entries
    ]
    screen.table(["Mode", "Size", "Modified", "Name"], rows)


def _name(entry: FileInfo) -> str:
    return f"{entry.name}/" if entry.is_dir else entry.name


def readable(size: int) -> str:
    """Return a number of bytes as text with a unit, such as `1.5 MiB`."""
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}" if unit else f"{size} B"


class _Files:
    """The requests for one path of one allocation."""

    def __init__(self, client: ApiClient, alloc_id: str, path: str) -> None:
        self._client, self._id, self._path = client, segment(alloc_id), path

    def request(self, verb: str) -> ClientResponse:
        return self._client.read(f"/v1/client/fs/{verb}/{self._id}", path=self._path)

    def pieces(
        self, length: int, *, follow: bool, lines: int | None, size: int | None
    ) -> Iterator[bytes]:
        """Yield the file or its end. With `follow`, also yield all data that is appended later."""
        start = 0 if size is None else max(0, length - size)
        if lines is not None and size is None:
            text = b"".join(self._stream(0, follow=False))
            yield last_lines(text, lines)
            start = len(text)
            if not follow:
                return
        yield from self._stream(start, follow=follow)

    def _stream(self, offset: int, *, follow: bool) -> Iterator[bytes]:
        path = f"/v1/client/fs/stream/{self._id}"
        query: dict[str, Value] = {"path": self._path, "offset": offset, "follow": follow}
        with self._client.stream(path, **query) as chunks:
            for frame in frames(chunks):
                yield frame.data
