"""`alloc logs`: output of a task, from its beginning or end, once or continuously."""

import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import click
import msgspec

from daemon.cli.core import formatting, resolve
from daemon.cli.core.formatting import short
from daemon.cli.core.http_client import (
    ApiClient,
    DaemonUnreachable,
    RequestRejected,
    Value,
    decode,
    segment,
)
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import AllocationDetail, AllocationItem, JobListItem, LogFrame
from daemon.text.placement_message import count_noun
from storage.errors import Invalid, NotFound, StewardError
from storage.records.allocation import ClientStatus, TaskPhase
from storage.records.job import JobStatus
from storage.records.state import Run

_LINES = 10  # default of -tail
_STDOUT = "stdout"
_PER_LINE = 200  # assumed bytes per line
_LEAST = 64 * 1024  # bytes of the first estimate
_NOT_FOUND = 404
_ALIVE = (ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.UNKNOWN)
_INTERRUPTED = "the output is incomplete, because the daemon stopped before the task ended"


_RUN = click.option(
    "--run",
    default="0",
    metavar="N|ID",
    help="Child of a periodic or parameterized job: 0 is the latest, 1 the previous child.",
)


_SINCE = click.option(
    "--since",
    default="",
    metavar="TIME",
    help="Lines of the last 10m, or since 2026-11-21T01:40:00Z.",
)
_CONTAINS = click.option(
    "--contains", default="", metavar="TEXT", help="Show only lines that contain TEXT."
)
_PREVIOUS = click.option("--previous", is_flag=True, help="Show the previous attempt.")


class LogInterrupted(StewardError):
    """A followed log ended before its task or job: the output is incomplete."""


class FollowedJob(msgspec.Struct, frozen=True, rename="pascal"):
    """The part of a job that says whether it has ended."""

    status: JobStatus


class LineSelection(NamedTuple):
    """The conditions by which the daemon selects log lines."""

    task: str = ""
    kind: str = ""
    contains: str = ""
    since: int = 0  # nanoseconds since the epoch
    previous: bool = False
    size: int | None = None  # bytes at the end of each log

    @property
    def are_searched(self) -> bool:
        """Return whether the daemon has to check each line."""
        return bool(self.contains or self.since or self.previous)

    def query(self) -> dict[str, Value]:
        """Return the query parameters of the selection."""
        query: dict[str, Value] = {
            "task": self.task,
            "type": self.kind,
            "contains": self.contains,
            "previous": "true" if self.previous else "",
            "since": self.since or "",
        }
        if self.size is not None:
            query |= {"origin": "end", "offset": self.size}
        return query


class LogPosition(NamedTuple):
    """The address of one log of one allocation."""

    path: str
    task: str
    kind: str

    def query(self, **more: Value) -> dict[str, Value]:
        """Return the query parameters that select this log, with additional parameters."""
        return {"task": self.task, "type": self.kind, **more}


@click.command()
@click.argument("alloc_id", metavar="ALLOCATION")
@click.argument("task", metavar="[TASK]", required=False)
@click.option("-f", "follow", is_flag=True, help="Follow the output.")
@click.option("--stderr", "kind", flag_value="stderr", help="Only standard error.")
@click.option("--stdout", "kind", flag_value="stdout", help="Only standard output.")
@click.option("--tail", is_flag=True, help=f"Show the end: {_LINES} lines unless -n is given.")
@click.option("-n", "lines", type=Integer(0), help="Number of lines at the end.")
@click.option("-c", "size", type=Integer(0), help="Number of bytes at the end.")
@click.option(
    "--job", "of_job", is_flag=True, help="ALLOCATION is a job: use its latest allocation."
)
@click.option(
    "--task", "named_task", metavar="TASK", help="Name of the task, if there are several."
)
@_SINCE
@_CONTAINS
@_PREVIOUS
@_RUN
@with_output
@with_client
def logs(
    client: ApiClient,
    screen: Screen,
    alloc_id: str,
    task: str | None,
    *,
    follow: bool,
    kind: str | None,
    tail: bool,
    lines: int | None,
    size: int | None,
    of_job: bool,
    named_task: str | None,
    since: str,
    contains: str,
    previous: bool,
    run: str,
) -> None:
    """Print the output of TASK of ALLOCATION; TASK is optional if there is only one task.

    By default, only the standard output is printed. If a job is named instead of an allocation,
    both streams of all allocations of the job are merged by time. Each line then begins with its
    allocation and task. For a periodic or parameterized job, this is the output of its latest
    child.

    --previous prints the output of the attempt before the current attempt. For an ended task, this
    is the attempt before the last attempt. The time of a line is the time stamp at its beginning,
    or else the second in which Steward read the line.

    Example: steward logs -f -job web
    """
    lines_wanted = LineSelection(
        task=named_task or task or "",
        kind=kind or "",
        contains=contains,
        since=formatting.time_of("-since", since, time.time_ns()),
        previous=previous,
        size=size,
    )
    if lines_wanted.are_searched and (tail or lines is not None):
        raise Invalid(
            "-tail and -n count all lines: do not combine them with -since, -contains or -previous"
        )
    if not of_job and not resolve.may_be_identifier(alloc_id):
        if tail or lines is not None:
            raise Invalid("-tail and -n need an allocation: use -c BYTES for a job")
        _merged(client, screen, alloc_id, lines_wanted, follow=follow, run=run)
        return
    if of_job:
        alloc_id = newest(client, alloc_id)
    allocation = resolve.allocation(client, alloc_id)
    chosen = choose_task(allocation, named_task or task)
    if lines_wanted.are_searched:
        selection = lines_wanted._replace(task=chosen, kind=kind or _STDOUT)
        where = {"allocation": allocation.id, "labels": "false"}
        _print(
            client, screen, allocation.namespace, allocation.job_id, selection, where, follow=follow
        )
        return
    log = LogPosition(f"/v1/client/fs/logs/{segment(allocation.id)}", chosen, kind or _STDOUT)
    chunks = _log_chunks(client, log, follow=follow, tail=tail, lines=lines, size=size)
    is_empty, has_ended = _write(chunks, follow=follow)
    if follow and has_ended:
        _check_end(client, allocation.namespace, allocation.job_id, allocation.id, chosen)
    if is_empty and kind is None and _has_errors(client, log):
        screen.warn("the standard output is empty; see the standard error with --stderr")


@click.command("logs")
@click.argument("job_id", metavar="JOB")
@click.option("-f", "follow", is_flag=True, help="Follow the output while the job has allocations.")
@click.option("--stderr", "kind", flag_value="stderr", help="Only standard error.")
@click.option("--stdout", "kind", flag_value="stdout", help="Only standard output.")
@click.option("-c", "size", type=Integer(0), help="Bytes at the end of each log.")
@click.option("--task", metavar="TASK", help="Only this task.")
@_SINCE
@_CONTAINS
@_PREVIOUS
@_RUN
@with_output
@with_client
def job_logs(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    *,
    follow: bool,
    kind: str | None,
    size: int | None,
    task: str | None,
    since: str,
    contains: str,
    previous: bool,
    run: str,
) -> None:
    """Print the output of all allocations of JOB, each line with its allocation and task.

    The lines are merged by time. For a periodic or parameterized job, the output of its latest
    child is printed.

    Example: steward job logs -f --contains error web
    """
    lines = LineSelection(
        task=task or "",
        kind=kind or "",
        contains=contains,
        since=formatting.time_of("-since", since, time.time_ns()),
        previous=previous,
        size=size,
    )
    _merged(client, screen, job_id, lines, follow=follow, run=run)


def _has_errors(client: ApiClient, log: LogPosition) -> bool:
    """Return whether the task has written to its standard error."""
    return any(_plain(client, log._replace(kind="stderr"), follow=False, origin="end", offset=1))


def run_of(client: ApiClient, line: JobListItem, run_name: str) -> str:
    """Return a child of a periodic or parameterized job: the Nth latest, or the child with this ID.

    Raises `NotFound`.
    """
    path = f"/v1/job/{segment(line.id)}/runs"
    runs = [run.id for run in client.fetch(path, list[Run], namespace=line.namespace)]
    if not runs:
        raise NotFound(f'job "{line.id}" has no run yet')
    if run_name.isdecimal() and int(run_name) < 10**6:
        number = int(run_name)
        if number >= len(runs):
            raise NotFound(f'job "{line.id}" has only {count_noun(len(runs), "run")} to show')
        return runs[number]
    matching_runs = [run for run in runs if run_name in (run, run.removeprefix(f"{line.id}/"))]
    if not matching_runs:
        raise NotFound(f'job "{line.id}" has no run {run_name!r} among its newest runs')
    return matching_runs[0]


def _merged(
    client: ApiClient, screen: Screen, job_id: str, lines: LineSelection, *, follow: bool, run: str
) -> None:
    line = resolve.job(client, job_id)
    job_id = line.id
    if line.periodic or line.parameterized_job:
        job_id = run_of(client, line, run)
        screen.warn(f"run {job_id}")
    _print(client, screen, line.namespace, job_id, lines, {}, follow=follow)


def _print(
    client: ApiClient,
    screen: Screen,
    namespace: str,
    job_id: str,
    lines: LineSelection,
    where: Mapping[str, str],
    *,
    follow: bool,
) -> None:
    """Print lines of the logs of a job, or of one of its allocations."""
    path = f"/v1/job/{segment(job_id)}/logs"
    query = {**lines.query(), **where, "follow": follow}
    chunks = _streamed(client, path, {**query, "namespace": namespace})
    is_empty, has_ended = _write(chunks, follow=follow)
    if follow and has_ended:
        _check_end(client, namespace, job_id, where.get("allocation", ""), lines.task)
    if is_empty and lines.previous:
        screen.warn("there is no earlier attempt, or it has no matching line")


def _write(chunks: Iterator[bytes], *, follow: bool) -> tuple[bool, bool]:
    """Print the chunks of a log as they arrive.

    Return whether there were none, and whether the log has ended. With `follow`, Ctrl-C stops the
    output without an error.
    """
    out = sys.stdout.buffer
    is_empty = True
    try:
        for chunk in chunks:
            is_empty = is_empty and not chunk
            out.write(chunk)
            out.flush()
    except KeyboardInterrupt:
        if not follow:
            raise
        return is_empty, False
    return is_empty, True


def _check_end(client: ApiClient, namespace: str, job_id: str, alloc_id: str, task: str) -> None:
    """Check that a followed log has ended because its task or job has ended.

    Without an allocation, check the job. A daemon that stops ends the response like a complete
    response. Raises `LogInterrupted`.
    """
    try:
        if alloc_id:
            path = f"/v1/allocation/{segment(alloc_id)}"
            alloc = client.fetch(path, AllocationDetail, namespace=namespace)
            state = (alloc.task_states or {}).get(task)
            has_ended = state is not None and state.state == TaskPhase.DEAD
            has_ended = has_ended or _status(alloc) not in _ALIVE
        else:
            path = f"/v1/job/{segment(job_id)}"
            status = client.fetch(path, FollowedJob, namespace=namespace).status
            has_ended = status == JobStatus.DEAD
    except DaemonUnreachable as error:
        raise LogInterrupted(f"{_INTERRUPTED}: {error}") from error
    except RequestRejected as error:
        if error.status != _NOT_FOUND:  # else it was deleted after its end
            raise
        return
    if not has_ended:
        raise LogInterrupted(f"{_INTERRUPTED}: run the command again to continue")


def newest(client: ApiClient, job_id: str) -> str:
    """Return the latest running allocation of a job; if none is running, its latest allocation."""
    line = resolve.job(client, job_id)
    job_id = line.id
    if line.periodic or line.parameterized_job:
        job_id = run_of(client, line, "0")
    path = f"/v1/job/{segment(job_id)}/allocations"
    allocs = client.fetch(path, list[AllocationItem], namespace=line.namespace)
    if not allocs:
        raise NotFound(
            f'job "{job_id}" has no allocations; see why with "steward job status {job_id}"'
        )
    rank = {ClientStatus.RUNNING: 1}
    best = max(
        allocs, key=lambda candidate: (rank.get(_status(candidate), 0), candidate.create_index)
    )
    return best.id


def _status(line: AllocationItem | AllocationDetail) -> ClientStatus:
    return ClientStatus(line.client_status)


def choose_task(allocation: AllocationDetail, task_name: str | None) -> str:
    """Return the task with this name, or the only task.

    Raises `Invalid`, whose message lists the tasks.
    """
    tasks = sorted(allocation.allocated_resources.tasks)
    if task_name is None and len(tasks) == 1:
        return tasks[0]
    subject = f"allocation {short(allocation.id)} has the tasks {', '.join(tasks)}"
    if task_name is None:
        raise Invalid(f"{subject}: add the name of one of them after the allocation")
    if task_name not in tasks:
        raise Invalid(f"{subject}, but no task {task_name!r}")
    return task_name


def _log_chunks(
    client: ApiClient,
    log: LogPosition,
    *,
    follow: bool,
    tail: bool,
    lines: int | None,
    size: int | None,
) -> Iterator[bytes]:
    if size == 0:  # size 0 means the whole last file, as in Nomad
        return _tail_and_follow(client, log, 0) if follow else iter(())
    if size is not None:
        return _plain(client, log, follow=follow, origin="end", offset=size)
    if not tail and lines is None:
        return _plain(client, log, follow=follow, origin="start", offset=0)
    line_count = _LINES if lines is None else lines
    if follow:
        return _tail_and_follow(client, log, line_count)
    return iter([last_lines(_end(client, log, line_count), line_count)])


def _plain(
    client: ApiClient, log: LogPosition, *, follow: bool, origin: str, offset: int
) -> Iterator[bytes]:
    query = log.query(plain=True, follow=follow, origin=origin, offset=offset)
    return _streamed(client, log.path, query)


def _streamed(client: ApiClient, path: str, query: Mapping[str, Value]) -> Iterator[bytes]:
    with client.stream(path, **query) as chunks:
        yield from chunks


def _end(client: ApiClient, log: LogPosition, lines: int) -> bytes:
    """Return at least the last `lines` lines of a log, or the whole log if it is shorter."""
    guess = max(_LEAST, lines * _PER_LINE)
    while True:
        body = client.read(log.path, **log.query(plain=True, origin="end", offset=guess)).body
        if len(body) < guess or body.count(b"\n") > lines:
            return body
        guess *= 4


def last_lines(text: bytes, count: int) -> bytes:
    """Return the last lines of a text; the last line may lack a line break."""
    ended = text.endswith(b"\n")
    lines = deque(text.removesuffix(b"\n").split(b"\n"), maxlen=count)
    return b"\n".join(lines) + (b"\n" if ended and lines else b"")


# --- end of a log and new output --------------------------------------------------------------
#
# Only positions separate existing output from new output, and only frames carry positions. So
# frames are read twice: first to find the end, then from before the end to follow.


def _tail_and_follow(client: ApiClient, log: LogPosition, lines: int) -> Iterator[bytes]:
    length = len(_end(client, log, lines))
    here = _position(client, log)
    past = b""
    query = log.query(follow=True, origin="end", offset=length)
    with client.stream(log.path, **query) as chunks:
        for frame in frames(chunks):
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


def _position(client: ApiClient, log: LogPosition) -> tuple[int, int] | None:
    """Return the end position of a log; None if it is empty."""
    body = client.read(log.path, **log.query(origin="end", offset=1)).body
    return max((position(frame) for frame in frames([body])), default=None)


def position(frame: LogFrame) -> tuple[int, int]:
    """Return the position after a frame; a later position compares as greater."""
    number = frame.file.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0, frame.offset


def frames(chunks: Iterator[bytes] | list[bytes]) -> Iterator[LogFrame]:
    """Return the frames in a stream, which may be chunked at any byte; leave out heartbeats."""
    scan = json.JSONDecoder().raw_decode
    buffer = ""
    for chunk in chunks:
        # latin-1 maps every byte to a character, so a truncated character causes no error
        buffer += chunk.decode("latin-1")
        while buffer:
            try:
                _, end = scan(buffer)
            except json.JSONDecodeError:
                break
            part = buffer[:end].encode("latin-1")
            frame = decode(part, LogFrame, may_be_empty=True)  # a heartbeat is {}
            buffer = buffer[end:].lstrip()
            if frame.data:
                yield frame
