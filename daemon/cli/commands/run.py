"""`job run`: submit a job file and wait until its tasks run."""

from contextlib import nullcontext
from math import inf

import click
import msgspec

from daemon.cli.core.follow import EXIT_NOT_PLACED, FollowResult, follow_run
from daemon.cli.core.formatting import seconds
from daemon.cli.core.http_client import ApiClient, ClientResponse
from daemon.cli.core.job_directories import with_directories
from daemon.cli.core.job_file import (
    VariableArguments,
    check_prospects,
    launches_children,
    namespace_of,
    read_source,
    registration,
    with_variables,
)
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen, SilentDisplay
from daemon.cli.core.responses import RegisterResult
from storage.errors import Invalid

EXIT_INTERRUPTED = 130  # as a shell reports a program that SIGINT ended

_Json = dict[str, object]


@click.command()
@click.argument("file")
@click.option("--detach", is_flag=True, help="Do not wait for the job to run.")
@click.option("--wait", is_flag=True, help="Wait until the job has ended; exit with its exit code.")
@click.option("--logs", is_flag=True, help="Wait, and print the output of tasks.")
@click.option("--timeout", metavar="TIME", help="Time limit of the wait, such as 10m.")
@click.option("--output", is_flag=True, help="Print the request as JSON; submit nothing.")
@click.option(
    "--check-index", type=Integer(0), metavar="N", help="Fail unless the job is at index N."
)
@click.option(
    "--eval-priority", type=Integer(1, 100), metavar="N", help="Priority of the evaluation, 1-100."
)
@click.option("--preserve-counts", is_flag=True, help="Keep the current counts of groups.")
@click.option("--preserve-resources", is_flag=True, help="Keep the current resources of tasks.")
@click.option("--policy-override", is_flag=True, help="Override soft-mandatory job policies.")
@click.option(
    "--with", "directories", multiple=True, metavar="DIR", help="Directory for all tasks."
)
@with_variables
@with_output
@with_client
def run(
    client: ApiClient,
    screen: Screen,
    file: str,
    *,
    variables: VariableArguments,
    detach: bool,
    wait: bool,
    logs: bool,
    timeout: str | None,
    output: bool,
    check_index: int | None,
    eval_priority: int | None,
    preserve_counts: bool,
    preserve_resources: bool,
    policy_override: bool,
    directories: tuple[str, ...],
) -> int:
    """Submit the job in FILE (- reads standard input) and wait for it.

    The file is in HCL, or holds a job as JSON: either {"Job": {...}} or the job alone. The command
    waits until the tasks run or, for a batch job, are complete. Then the exit status is 0. It is 1
    if the job failed, and 2 if it could not be placed.

    With --wait, the command waits until the job has ended. The exit status is that of the task that
    failed first. It is 124 if a time limit of the job, or the time of --timeout, has passed. After
    --timeout, running tasks continue. For an unchanged job, the command waits for its existing
    allocations. A periodic or parameterized job is rejected, because only its children run.

    --with makes a directory available to all tasks as local/NAME. NAME is the last component of the
    directory's path. The directory is uploaded unless the daemon has the same content. Its files
    are read-only for the tasks. The directory must not contain links.

    Example: steward job run --logs --timeout 10m report.hcl
    """
    wait = wait or logs or timeout is not None
    longest = inf if timeout is None else seconds("-timeout", timeout)
    request = registration(read_source(file), file, variables)
    if wait:
        _check_waiting(screen, request["Job"], detach=detach, logs=logs)
    if check_index is not None:
        request |= {"EnforceIndex": True, "JobModifyIndex": check_index}
    if eval_priority is not None:
        request["EvalPriority"] = eval_priority
    flags = {
        "PreserveCounts": preserve_counts,
        "PreserveResources": preserve_resources,
        "PolicyOverride": policy_override,
    }
    request |= {name: True for name, is_set in flags.items() if is_set}
    request = with_directories(client, screen, request, directories, uploads=not output)
    if output:
        screen.document(msgspec.json.encode(request))
        return 0
    check_prospects(client, request["Job"], screen.warn)
    namespace = namespace_of(client, request["Job"])
    answer = client.send("POST", "/v1/jobs", request, namespace=namespace)
    registered = answer.decode(RegisterResult)
    if registered.warnings:
        screen.warn(registered.warnings.rstrip())
    if detach or not registered.eval_id:
        _show_registered(screen, answer, registered)
        return 0
    try:
        return _follow(screen, client, answer, wait=wait, logs=logs, longest=longest)
    except KeyboardInterrupt:
        screen.warn("\nno longer waiting; the job continues, see: steward job status")
        return EXIT_INTERRUPTED


def _check_waiting(screen: Screen, job: object, *, detach: bool, logs: bool) -> None:
    if detach:
        raise Invalid("-detach does not wait: do not combine it with -wait, -logs or -timeout")
    if logs and screen.wants_document:
        raise Invalid("-logs prints the output of tasks: do not combine it with -json or -t")
    if launches_children(job):
        raise Invalid(
            "only children of a periodic or parameterized job run: do not use -wait, -logs or -timeout; "
            'wait for a child with "steward job dispatch -wait"'
        )


def _follow(
    screen: Screen,
    client: ApiClient,
    answer: ClientResponse,
    *,
    wait: bool,
    logs: bool,
    longest: float,
) -> int:
    """Wait for the result of a registration and print it; return the exit status."""
    eval_id = answer.decode(RegisterResult).eval_id
    if not wait:
        with screen.progress() as progress:
            ending = follow_run(client, progress, eval_id)
        _show_ending(screen, answer, ending)
        return ending.status
    from daemon.cli.commands.wait_for_job import (  # slow: imports Trio
        EXIT_TIMED_OUT,
        exit_status,
        wait_for_end,
    )

    with nullcontext(SilentDisplay()) if logs else screen.progress() as progress:
        ended = wait_for_end(client, screen, progress, eval_id, logs=logs, seconds=longest)
    if ended is None:
        screen.warn(
            "no longer waiting: the time limit has passed; the job continues, see: steward job status"
        )
        return EXIT_TIMED_OUT
    if logs:
        screen.warn(ended.message)
    else:
        _show_ending(screen, answer, ended)
    return exit_status(ended)


def _show_registered(
    screen: Screen, answer: ClientResponse, register_result: RegisterResult
) -> None:
    if screen.wants_document:
        screen.document(answer.body)
        return
    screen.line("Job registration successful")
    if register_result.eval_id:
        screen.line(f"Evaluation ID: {register_result.eval_id}")
    else:
        screen.line("It runs when it is dispatched, or on schedule.")


def _show_ending(screen: Screen, answer: ClientResponse, ending: FollowResult) -> None:
    job_id = ending.evaluation.job_id
    if screen.wants_document:
        ending_fields = {"Evaluation": ending.evaluation, "Allocations": list(ending.allocations)}
        screen.document(msgspec.json.encode({**answer.decode(_Json), **ending_fields}))
        return
    screen.line(ending.message)
    if ending.status == EXIT_NOT_PLACED:
        screen.hint(f"For details: steward job explain {job_id}")
    elif ending.status:
        screen.hint(f"See its status with: steward job status {job_id}")
    else:
        screen.hint(f"Stream its output: steward logs -f -job {job_id}")
