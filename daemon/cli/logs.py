"""`alloc logs`: what a task prints, from the beginning or the end, once or as it comes."""

import json
import sys
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import click

from daemon.cli import resolve
from daemon.cli.answers import AllocationLine, LogFrame, ShownAllocation
from daemon.cli.client import Client, Value, decode, segment
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.cli.text import short
from storage.errors import Invalid, NotFound
from storage.records.allocation import ClientStatus

_LINES = 10  # that -tail shows
_PER_LINE = 200  # bytes that a line is guessed to have
_LEAST = 64 * 1024  # bytes of the first guess


class Log(NamedTuple):
    """Which log of which allocation."""

    path: str
    task: str
    kind: str

    def query(self, **more: Value) -> dict[str, Value]:
        """Return the parameters that name it, and more."""
        return {"task": self.task, "type": self.kind, **more}


@click.command()
@click.argument("alloc_id", metavar="ALLOCATION")
@click.argument("task", metavar="[TASK]", required=False)
@click.option("-f", "follow", is_flag=True, help="Go on as long as the task prints.")
@click.option("--stderr", "kind", flag_value="stderr", help="Show standard error.")
@click.option("--stdout", "kind", flag_value="stdout", default="stdout", help="(default)")
@click.option("--tail", is_flag=True, help=f"Show the end: {_LINES} lines if -n says no other.")
@click.option("-n", "lines", type=click.IntRange(min=0), help="Number of lines at the end.")
@click.option("-c", "size", type=click.IntRange(min=0), help="Number of bytes at the end.")
@click.option("--job", "of_job", is_flag=True, help="ALLOCATION is a job: take its newest one.")
@click.option("--task", "named_task", metavar="TASK", help="The task, if there are several.")
@shown
@connected
def logs(
    client: Client,
    screen: Screen,
    alloc_id: str,
    task: str | None,
    *,
    follow: bool,
    kind: str,
    tail: bool,
    lines: int | None,
    size: int | None,
    of_job: bool,
    named_task: str | None,
) -> None:
    """Print what TASK of ALLOCATION prints; with one task its name may be left out.

    In the place of an allocation may stand a job: then this prints what all of its allocations print.

    Example: steward logs -f -job web
    """
    if not of_job and not resolve.may_be_identifier(alloc_id):
        if tail or lines is not None:
            raise Invalid("-tail and -n are for one allocation: for a job use -c BYTES")
        _merged(client, alloc_id, follow=follow, kind=kind, size=size, task=named_task or task)
        return
    if of_job:
        alloc_id = newest(client, alloc_id)
    allocation = resolve.allocation(client, alloc_id)
    chosen = choose_task(allocation, named_task or task)
    log = Log(f"/v1/client/fs/logs/{segment(allocation.id)}", chosen, kind)
    out = sys.stdout.buffer
    try:
        for piece in _pieces(client, log, follow=follow, tail=tail, lines=lines, size=size):
            out.write(piece)
            out.flush()
    except KeyboardInterrupt:
        if not follow:
            raise


@click.command("logs")
@click.argument("job_id", metavar="JOB")
@click.option("-f", "follow", is_flag=True, help="Go on as long as the job has allocations.")
@click.option("--stderr", "kind", flag_value="stderr", help="Show standard error only.")
@click.option("--stdout", "kind", flag_value="stdout", help="Show standard output only.")
@click.option("-c", "size", type=click.IntRange(min=0), help="Bytes at the end of each log.")
@click.option("--task", metavar="TASK", help="One task only.")
@click.option("--contains", default="", metavar="TEXT", help="Lines with TEXT only.")
@shown
@connected
def job_logs(
    client: Client,
    screen: Screen,
    job_id: str,
    *,
    follow: bool,
    kind: str | None,
    size: int | None,
    task: str | None,
    contains: str,
) -> None:
    """Print what all allocations of JOB print, each line behind its allocation and task.

    Example: steward job logs -f --contains error web
    """
    _merged(client, job_id, follow=follow, kind=kind, size=size, task=task, contains=contains)


def _merged(
    client: Client,
    job_id: str,
    *,
    follow: bool,
    kind: str | None,
    size: int | None,
    task: str | None,
    contains: str = "",
) -> None:
    line = resolve.job(client, job_id)
    query: dict[str, Value] = {"task": task or "", "type": kind or "", "contains": contains}
    if size is not None:
        query |= {"origin": "end", "offset": size}
    path = f"/v1/job/{segment(line.id)}/logs"
    out = sys.stdout.buffer
    try:
        with client.stream(path, namespace=line.namespace, follow=follow, **query) as pieces:
            for piece in pieces:
                out.write(piece)
                out.flush()
    except KeyboardInterrupt:
        if not follow:
            raise


def newest(client: Client, job_id: str) -> str:
    """Return the allocation of a job to look at: the newest that runs, else the newest."""
    line = resolve.job(client, job_id)
    path = f"/v1/job/{segment(line.id)}/allocations"
    found = client.fetch(path, list[AllocationLine], namespace=line.namespace)
    if not found:
        raise NotFound(
            f'job "{line.id}" has no allocations; see why with "steward job status {line.id}"'
        )
    rank = {ClientStatus.RUNNING: 1}
    best = max(found, key=lambda one: (rank.get(_status(one), 0), one.create_index))
    return best.id


def _status(line: AllocationLine) -> ClientStatus:
    return ClientStatus(line.client_status)


def choose_task(allocation: ShownAllocation, given: str | None) -> str:
    """Return the task whose log is meant. Raises `Invalid`, which lists those that there are."""
    tasks = sorted(allocation.allocated_resources.tasks)
    if given is None and len(tasks) == 1:
        return tasks[0]
    about = f"allocation {short(allocation.id)} has the tasks {', '.join(tasks)}"
    if given is None:
        raise Invalid(f"{about}: name one behind the allocation")
    if given not in tasks:
        raise Invalid(f"{about}, but no task {given!r}")
    return given


def _pieces(
    client: Client,
    log: Log,
    *,
    follow: bool,
    tail: bool,
    lines: int | None,
    size: int | None,
) -> Iterator[bytes]:
    if size == 0:  # the daemon takes it for the last file whole, as the peer does
        return _tail_and_follow(client, log, 0) if follow else iter(())
    if size is not None:
        return _plain(client, log, follow=follow, origin="end", offset=size)
    if not tail and lines is None:
        return _plain(client, log, follow=follow, origin="start", offset=0)
    wanted = _LINES if lines is None else lines
    if follow:
        return _tail_and_follow(client, log, wanted)
    return iter([last_lines(_end(client, log, wanted), wanted)])


def _plain(client: Client, log: Log, *, follow: bool, origin: str, offset: int) -> Iterator[bytes]:
    query = log.query(plain=True, follow=follow, origin=origin, offset=offset)
    with client.stream(log.path, **query) as pieces:
        yield from pieces


def _end(client: Client, log: Log, lines: int) -> bytes:
    """Return at least the last `lines` lines of a log, or all of it."""
    guess = max(_LEAST, lines * _PER_LINE)
    while True:
        body = client.read(log.path, **log.query(plain=True, origin="end", offset=guess)).body
        if len(body) < guess or body.count(b"\n") > lines:
            return body
        guess *= 4


def last_lines(text: bytes, count: int) -> bytes:
    """Return the last lines of a text; the very last may have no end."""
    ended = text.endswith(b"\n")
    lines = deque(text.removesuffix(b"\n").split(b"\n"), maxlen=count)
    return b"\n".join(lines) + (b"\n" if ended and lines else b"")


# ---- the end of a log and what comes then ------------------------------------------------------
#
# How much of the log is its past is known only by position, so this reads frames, which carry it:
# once to learn where the log ends, and again to follow it from before that place.


def _tail_and_follow(client: Client, log: Log, lines: int) -> Iterator[bytes]:
    length = len(_end(client, log, lines))
    here = _position(client, log)
    past = b""
    query = log.query(follow=True, origin="end", offset=length)
    with client.stream(log.path, **query) as pieces:
        for frame in frames(pieces):
            if here is None:
                yield frame.data
                continue
            past += frame.data
            if position(frame) < here:
                continue
            here = None
            yield last_lines(past, lines)
    if here is not None:
        yield last_lines(past, lines)


def _position(client: Client, log: Log) -> tuple[int, int] | None:
    """Return where a log ends; None when it is empty."""
    body = client.read(log.path, **log.query(origin="end", offset=1)).body
    return max((position(frame) for frame in frames([body])), default=None)


def position(frame: LogFrame) -> tuple[int, int]:
    """Return the place behind a frame; places later in the log are greater."""
    number = frame.file.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0, frame.offset


def frames(pieces: Iterator[bytes] | list[bytes]) -> Iterator[LogFrame]:
    """Return the frames in a stream that is cut anywhere; heartbeats are passed over."""
    scan = json.JSONDecoder().raw_decode
    buffer = ""
    for piece in pieces:
        buffer += piece.decode("latin-1")  # any byte is a character: a cut one is no fault
        while buffer:
            try:
                _, end = scan(buffer)
            except json.JSONDecodeError:
                break
            frame = decode(buffer[:end].encode("latin-1"), LogFrame)
            buffer = buffer[end:].lstrip()
            if frame.data:
                yield frame
