"""`job run`: submit a job file and follow it until its tasks run."""

from contextlib import nullcontext
from math import inf

import click
import msgspec

from daemon.cli.answers import Registered
from daemon.cli.client import Answer, Client
from daemon.cli.follow import EXIT_NOT_PLACED, Ending, follow_run
from daemon.cli.jobfile import (
    Given,
    launches_children,
    namespace_of,
    read_source,
    registration,
    with_variables,
)
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen, Silence
from daemon.cli.text import seconds
from storage.errors import Invalid

EXIT_INTERRUPTED = 130  # as a shell reports a program that SIGINT ended

_Json = dict[str, object]


@click.command()
@click.argument("file")
@click.option("--detach", is_flag=True, help="Do not wait for the job to run.")
@click.option("--wait", is_flag=True, help="Wait until all has ended; end as the task did.")
@click.option("--logs", is_flag=True, help="Wait, and print what the tasks print.")
@click.option("--timeout", metavar="TIME", help="Wait for so long at most, as in 10m.")
@click.option("--output", is_flag=True, help="Print the request as JSON, and submit nothing.")
@click.option("--check-index", type=int, metavar="N", help="Refuse if the job is not at index N.")
@click.option("--eval-priority", type=int, metavar="N", help="Priority of the evaluation, 1-100.")
@click.option("--preserve-counts", is_flag=True, help="Keep the counts that groups have now.")
@click.option("--preserve-resources", is_flag=True, help="Keep the resources tasks have now.")
@with_variables
@shown
@connected
def run(
    client: Client,
    screen: Screen,
    file: str,
    *,
    given: Given,
    detach: bool,
    wait: bool,
    logs: bool,
    timeout: str | None,
    output: bool,
    check_index: int | None,
    eval_priority: int | None,
    preserve_counts: bool,
    preserve_resources: bool,
) -> int:
    """Submit the job in FILE (- reads standard input) and follow it.

    The file is in HCL, or holds a job as JSON: either {"Job": {...}} or the job alone. Following
    ends when the tasks run or, for a batch job, are complete. The exit status is 0 then, 1 when the
    job failed, and 2 when it could not be placed.

    With --wait it goes on until all has ended, and the exit status is that of the task that failed
    first; 124 when the time of --timeout or of the job itself is over. What runs then goes on. Of a
    job that is there already, unchanged, it waits for what runs or ran; a periodic or parameterized
    one is refused, for only its children run.

    Example: steward job run --logs --timeout 10m report.hcl
    """
    wait = wait or logs or timeout is not None
    longest = inf if timeout is None else seconds("-timeout", timeout)
    request = registration(read_source(file), file, given)
    if wait:
        _check_waiting(screen, request["Job"], detach=detach, logs=logs)
    if check_index is not None:
        request |= {"EnforceIndex": True, "JobModifyIndex": check_index}
    if eval_priority is not None:
        request["EvalPriority"] = eval_priority
    if preserve_counts:
        request["PreserveCounts"] = True
    if preserve_resources:
        request["PreserveResources"] = True
    if output:
        screen.document(msgspec.json.encode(request))
        return 0
    namespace = namespace_of(client, request["Job"])
    answer = client.send("POST", "/v1/jobs", request, namespace=namespace)
    registered = answer.decode(Registered)
    if registered.warnings:
        screen.warn(registered.warnings.rstrip())
    if detach or not registered.eval_id:
        _show_registered(screen, answer, registered)
        return 0
    try:
        return _follow(screen, client, answer, wait=wait, logs=logs, longest=longest)
    except KeyboardInterrupt:
        screen.warn("\nno longer following; the job goes on, see: steward job status")
        return EXIT_INTERRUPTED


def _check_waiting(screen: Screen, job: object, *, detach: bool, logs: bool) -> None:
    if detach:
        raise Invalid("-detach does not wait: leave it out, or -wait, -logs and -timeout")
    if logs and screen.wants_document:
        raise Invalid("-logs prints what the tasks print: leave -json and -t out")
    if launches_children(job):
        raise Invalid(
            "of a periodic or parameterized job only children run: leave -wait, -logs and -timeout "
            'out, and wait for a child with "steward job dispatch -wait"'
        )


def _follow(
    screen: Screen, client: Client, answer: Answer, *, wait: bool, logs: bool, longest: float
) -> int:
    """Follow a registration and tell how it came out; return the exit status."""
    eval_id = answer.decode(Registered).eval_id
    if not wait:
        with screen.progress() as progress:
            ending = follow_run(client, progress, eval_id)
        _show_ending(screen, answer, ending)
        return ending.status
    from daemon.cli.waiting import EXIT_TIMED_OUT, exit_status, wait_for_end  # has Trio: slow

    with nullcontext(Silence()) if logs else screen.progress() as progress:
        ended = wait_for_end(client, screen, progress, eval_id, logs=logs, seconds=longest)
    if ended is None:
        screen.warn("no longer waiting: the time is over; the job goes on, see: steward job status")
        return EXIT_TIMED_OUT
    if logs:
        screen.warn(ended.told)
    else:
        _show_ending(screen, answer, ended)
    return exit_status(ended)


def _show_registered(screen: Screen, answer: Answer, registered: Registered) -> None:
    if screen.wants_document:
        screen.document(answer.body)
        return
    screen.line("Job registration successful")
    if registered.eval_id:
        screen.line(f"Evaluation ID: {registered.eval_id}")
    else:
        screen.line("It runs when it is dispatched, or when its time comes.")


def _show_ending(screen: Screen, answer: Answer, ending: Ending) -> None:
    job_id = ending.evaluation.job_id
    if screen.wants_document:
        shown = {"Evaluation": ending.evaluation, "Allocations": list(ending.allocations)}
        screen.document(msgspec.json.encode({**answer.decode(_Json), **shown}))
        return
    screen.line(ending.told)
    if ending.status == EXIT_NOT_PLACED:
        screen.hint(f"See what it lacks with: steward job explain {job_id}")
    elif ending.status:
        screen.hint(f"Look at it with: steward job status {job_id}")
    else:
        screen.hint(f"See what it prints with: steward logs -f -job {job_id}")
