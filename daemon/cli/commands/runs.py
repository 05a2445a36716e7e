"""`runs`: runs of workflows and their steps."""

import time
from collections.abc import Callable
from math import inf

import click
import msgspec

from daemon.cli.commands.status import show_error
from daemon.cli.core import resolve
from daemon.cli.core.flow_runs import (
    describe_run,
    describe_step,
    exit_status,
    find_run,
    follow_flow,
)
from daemon.cli.core.formatting import format_duration, format_time, seconds
from daemon.cli.core.http_client import ApiClient, ClientResponse, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from storage.errors import NotFound
from storage.records.flow import (
    FlowRun,
    FlowRunView,
    FlowStatus,
    RunElement,
    RunStepView,
    StepOutputs,
    StepState,
)
from storage.records.state import StateLine

EXIT_TIMED_OUT = 124  # as in timeout(1)
_MARKS = {
    StepState.WAITING: "-",
    StepState.HELD: "=",
    StepState.OPEN: ".",
    StepState.RUNNING: ">",
    StepState.SUCCEEDED: "+",
    StepState.FAILED: "!",
    StepState.SKIPPED: "/",
    StepState.CANCELED: "x",
}
_RUN = click.option(
    "--run", "number", type=Integer(0), metavar="N", help="Number of the run [default: the newest]."
)


@click.command("list")
@click.argument("job_id", metavar="JOB", default="")
@click.option(
    "--status",
    type=click.Choice([status.value for status in FlowStatus]),
    help="Only runs in this state.",
)
@click.option("-n", "most", type=Integer(1, 1000), default=20, help="Number of runs.")
@with_output
@with_client
def index(client: ApiClient, screen: Screen, job_id: str, *, status: str, most: int) -> None:
    """List the runs of workflows, newest first: all, or only the runs of JOB and its children.

    Example: steward runs list nightly
    """
    query: dict[str, str | int] = {"per_page": most, "status": status or ""}
    namespace = client.namespace
    if job_id:
        line = resolve.job(client, job_id)
        query["job"], namespace = line.id, line.namespace
    answer = client.read("/v1/runs", namespace=namespace, **query)
    if screen.wants_document:
        screen.document(answer.checked(list[FlowRun]))
        return
    flow_runs = answer.decode(list[FlowRun])
    if not flow_runs:
        screen.line("No runs")
        return
    rows = [
        (
            flow_run.job_id,
            str(flow_run.number),
            str(flow_run.version),
            flow_run.status,
            format_time(flow_run.began),
            _length(flow_run),
            flow_run.reason or (f"only step {flow_run.only}" if flow_run.only else ""),
        )
        for flow_run in flow_runs
    ]
    screen.table(("Job", "Run", "Version", "Status", "Began", "Duration", "Reason"), rows)


def _length(run: FlowRun) -> str:
    return format_duration((run.ended or time.time_ns()) - run.began)


@click.command()
@click.argument("job_id", metavar="JOB")
@_RUN
@with_output
@with_client
def status(client: ApiClient, screen: Screen, job_id: str, *, number: int | None) -> None:
    """Show a run of JOB with its steps, the newest run by default.

    For a periodic or parameterized job, the newest child with a run is shown. If the newest run of
    a job has failed, its last error follows. The sign before a step is + for success, ! for a
    failure, / for skipped, x for canceled, > for running, . for open, = for held, and - for
    waiting.

    Example: steward runs status nightly
    """
    answer = _find(client, job_id, number)
    if screen.wants_document:
        screen.document(answer.checked(FlowRunView))
        return
    run = answer.decode(FlowRunView)
    reason = f": {run.reason}" if run.reason else ""
    screen.line(
        f"{run.job_id}  run {run.number}  {run.status} {_length(run)}  version {run.version}{reason}"
    )
    if run.only:
        screen.line(f"one step by hand: {run.only}, with the outputs of run {run.outputs_of}")
    rows = [
        (
            f"{'  ' * run_step_view.level}{_MARKS[run_step_view.state]} {run_step_view.name}",
            run_step_view.state,
            _count(run_step_view),
            _open_duration(run_step_view),
            describe_step(run_step_view),
        )
        for run_step_view in _by_level(run)
    ]
    screen.table(("Step", "State", "Elements", "Time", "Details"), rows)
    _show_failure(client, screen, run)


def _by_level(run: FlowRunView) -> list[RunStepView]:
    return sorted(run.steps, key=lambda step: step.level)


def _count(step: RunStepView) -> str:
    failed = f", {step.failed} failed" if step.failed else ""
    return f"{step.good}/{step.total}{failed}"


def _open_duration(step: RunStepView) -> str:
    """Return how long a step has been open, or was open; empty if it has not opened yet."""
    if not step.opened or step.state in (StepState.WAITING, StepState.HELD):
        return ""
    return format_duration((time.time_ns() if step.outcome is None else step.since) - step.opened)


@click.command()
@click.argument("job_id", metavar="JOB")
@click.argument("step", metavar="STEP", default="")
@_RUN
@with_output
@with_client
def outputs(
    client: ApiClient, screen: Screen, job_id: str, step: str, *, number: int | None
) -> None:
    """Show the outputs of a run of JOB, or of STEP only; the newest run by default.

    Example: steward runs outputs nightly plan
    """
    run = _find(client, job_id, number).decode(FlowRunView)
    path = f"/v1/job/{segment(run.job_id)}/run/outputs"
    answer = client.read(path, namespace=run.namespace, number=str(run.number), step=step)
    if screen.wants_document:
        screen.document(answer.checked(list[StepOutputs]))
        return
    rows = [
        (step_outputs.step, str(step_outputs.element), name, text)
        for step_outputs in answer.decode(list[StepOutputs])
        for name, text in step_outputs.outputs.items()
    ]
    if not rows:
        screen.line("No outputs")
        return
    screen.table(("Step", "Element", "Name", "Value"), rows)


@click.command()
@click.argument("job_id", metavar="JOB")
@click.argument("step", metavar="STEP")
@_RUN
@click.option(
    "--state",
    type=click.Choice([state.value for state in StepState]),
    help="Only elements in this state.",
)
@with_output
@with_client
def elements(
    client: ApiClient, screen: Screen, job_id: str, step: str, *, number: int | None, state: str
) -> None:
    """List the elements of STEP in a run of JOB, the newest run by default.

    Example: steward runs elements -state failed nightly load
    """
    run = _find(client, job_id, number).decode(FlowRunView)
    path = f"/v1/job/{segment(run.job_id)}/run"
    query = {"number": str(run.number), "elements": step}
    run_elements, first = list[RunElement](), 0
    while page := client.fetch(
        path, FlowRunView, namespace=run.namespace, next_token=str(first), **query
    ).elements:
        run_elements += page
        first = page[-1].index + 1
    chosen = [element for element in run_elements if state in (None, element.state)]
    if screen.wants_document:
        screen.document(msgspec.json.encode(chosen))
        return
    if not chosen:
        screen.line("No elements")
        return
    rows = [
        (
            str(element.index),
            element.key,
            element.state,
            str(element.attempt),
            str(element.exit_code),
            element.alloc_id,
        )
        for element in chosen
    ]
    screen.table(("Index", "Key", "State", "Attempt", "Exit Code", "Allocation"), rows)


@click.command()
@click.argument("job_id", metavar="JOB")
@_RUN
@click.option("--timeout", metavar="TIME", help="Time limit of the wait, such as 10m.")
@with_output
@with_client
def wait(
    client: ApiClient, screen: Screen, job_id: str, *, number: int | None, timeout: str | None
) -> int:
    """Wait until a run of JOB has ended, the newest run by default.

    The exit status is 0 if the run succeeded, else the exit code of the step that failed first. It
    is 1 if no step has an exit code, and 124 if the time of --timeout has passed.

    Example: steward runs wait -timeout 2h nightly
    """
    until = inf if timeout is None else time.monotonic() + seconds("-timeout", timeout)
    answer = _find(client, job_id, number)
    try:
        with screen.progress() as progress:
            run = follow_flow(client, progress, answer, _checked(until))
    except _TimedOutError:
        screen.warn(f"the run has not ended after {timeout}")
        return EXIT_TIMED_OUT
    if screen.wants_document:
        client_response = find_run(client, run.job_id, run.namespace, run.number)
        screen.document(client_response.body if client_response else b"{}")
    else:
        _show_failure(client, screen, run)
        screen.line(describe_run(run))
    return exit_status(run)


def _show_failure(client: ApiClient, screen: Screen, run: FlowRunView) -> None:
    """Print the error that failed a run, if it is the newest run of its job."""
    if run.status is not FlowStatus.FAILED:
        return
    newest = find_run(client, run.job_id, run.namespace)
    if newest is None or newest.decode(FlowRunView).number != run.number:
        return
    path = f"/v1/job/{segment(run.job_id)}/state"
    state = client.fetch(path, StateLine, namespace=run.namespace)
    if state.error:
        show_error(screen, state.error)


class _TimedOutError(Exception):
    """The wait has exceeded its limit."""


def _checked(until: float) -> Callable[[FlowRunView], None]:
    def check(run: FlowRunView) -> None:
        if time.monotonic() > until and not run.status.has_ended:
            raise _TimedOutError

    return check


def _find(client: ApiClient, job_id: str, number: int | None) -> ClientResponse:
    """Return a run of a job, or the newest run of its children. Raises `NotFound`."""
    line = resolve.job(client, job_id)
    client_response = find_run(client, line.id, line.namespace, number)
    if client_response is None and number is None:
        newest = client.fetch(
            "/v1/runs", list[FlowRun], namespace=line.namespace, job=line.id, per_page=1
        )
        if newest:
            client_response = find_run(
                client, newest[0].job_id, newest[0].namespace, newest[0].number
            )
    if client_response is None:
        which = "no run" if number is None else f"no run {number}"
        raise NotFound(f"job {line.id!r} has {which}; list the runs with: steward runs")
    return client_response
