"""`alloc kept`: list and download the kept files of ended tasks."""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from daemon.cli.commands.alloc_fs import readable
from daemon.cli.commands.logs import newest
from daemon.cli.core import resolve
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.errors import Invalid, NotFound
from storage.records.kept_file import KeptFile


@click.command()
@click.argument("alloc_id", metavar="ALLOCATION")
@click.argument("path", metavar="[PATH]", default="")
@click.option("--task", default="", help="Only the files of this task.")
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    default="",
    help="Write the file PATH to FILE (-: standard output).",
)
@click.option("--to", "folder", metavar="DIR", default="", help="Write all files below DIR/TASK/.")
@click.option(
    "--job", "of_job", is_flag=True, help="ALLOCATION is a job: use its latest allocation."
)
@with_output
@with_client
def kept(
    client: ApiClient,
    screen: Screen,
    alloc_id: str,
    path: str,
    *,
    task: str,
    target: str,
    folder: str,
    of_job: bool,
) -> None:
    """List the kept files of ALLOCATION, or print the file PATH.

    Steward keeps files of a task if the job sets steward_keep.

    Example: steward alloc kept 5d3c9a12 out/rows.csv -o rows.csv
    """
    if folder and (path or target):
        raise Invalid("--to writes all files: leave out PATH and --output")
    if target and not path:
        raise Invalid("PATH is missing: pass the path of the kept file that --output writes")
    allocation = resolve.allocation(client, newest(client, alloc_id) if of_job else alloc_id)
    address = f"/v1/allocation/{segment(allocation.id)}/kept"
    answer = client.read(address)
    kept_files = [
        kept_file for kept_file in answer.decode(list[KeptFile]) if task in ("", kept_file.task)
    ]
    if path:
        _give(client, address, _named(kept_files, path), target)
    elif folder:
        for file in kept_files:
            _save(client, address, file, _below(Path(folder), file))
            screen.line(f"{file.task}/{file.path}  {readable(file.size)}")
    elif screen.wants_document:
        screen.document(answer.body)
    else:
        rows = [
            [file.task, file.path, readable(file.size), file.digest[:12]] for file in kept_files
        ]
        screen.table(["Task", "Path", "Size", "SHA-256"], rows)


def _named(files: list[KeptFile], path: str) -> KeptFile:
    """Return the file at a path.

    Raises `NotFound`, or `Invalid` if several tasks have a file with this path.
    """
    matching = [file for file in files if file.path == path]
    if not matching:
        raise NotFound(f"no kept file has the path {path!r}: leave out the path to list the files")
    if len(matching) > 1:
        raise Invalid(f"--task is missing: several tasks have a kept file {path!r}")
    return matching[0]


def _give(client: ApiClient, address: str, file: KeptFile, target: str) -> None:
    """Write a kept file to the path `target`, or print it if `target` is empty or `-`."""
    if target not in ("", "-"):
        _save(client, address, file, Path(target))
        return
    for chunk in _download_chunks(client, address, file):
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def _below(folder: Path, file: KeptFile) -> Path:
    """Return the path of a file below a directory. Raises `Invalid` for a path outside of it."""
    names = [file.task, *file.path.split("/")]
    if any(name in ("", ".", "..") for name in names):
        raise Invalid(f"the path {file.path!r} leads out of {folder}: use --output")
    return folder.joinpath(*names)


def _save(client: ApiClient, address: str, kept_file: KeptFile, target: Path) -> None:
    """Write a file if its digest matches; replace `target` atomically. Raises `Invalid`."""
    unfinished = target.with_name(f".{target.name}.unfinished")
    digest = hashlib.sha256()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("wb") as file:
                for chunk in _download_chunks(client, address, kept_file):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != kept_file.digest:
                raise Invalid(
                    f"the content of {kept_file.path!r} is incomplete or damaged: run the command again"
                )
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise Invalid(f"cannot write {target}: {error.strerror}") from error


def _download_chunks(client: ApiClient, address: str, file: KeptFile) -> Iterator[bytes]:
    with client.stream(f"{address}/file", task=file.task, path=file.path) as chunks:
        yield from chunks
