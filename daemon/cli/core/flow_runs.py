"""Runs of workflows: read a run, wait until it has ended, and show its steps."""

from collections.abc import Callable
from http import HTTPStatus

from daemon.cli.core.formatting import format_time
from daemon.cli.core.http_client import ApiClient, ClientResponse, RequestRejected, segment
from daemon.cli.core.output import ProgressDisplay, ProgressRow
from storage.records.flow import FlowRunView, FlowStatus, RunStepView, StepState

EXIT_FAILED = 1
_EXIT_CODES = range(1, 256)


def find_run(
    client: ApiClient, job_id: str, namespace: str, number: int | None = None
) -> ClientResponse | None:
    """Return the run of a job with this number, by default the newest run.

    Return None if it does not exist.
    """
    query = {} if number is None else {"number": str(number)}
    try:
        return client.read(f"/v1/job/{segment(job_id)}/run", namespace=namespace, **query)
    except RequestRejected as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise


def follow_flow(
    client: ApiClient,
    progress: ProgressDisplay,
    answer: ClientResponse,
    tell: Callable[[FlowRunView], None] = lambda _: None,
) -> FlowRunView:
    """Wait until a run has ended, and return it; `tell` receives it at each poll."""
    while True:
        run = answer.decode(FlowRunView)
        progress.show([step_row(step) for step in run.steps])
        tell(run)
        if run.status.has_ended:
            return run
        path = f"/v1/job/{segment(run.job_id)}/run"
        answer = client.newer(path, answer.index, namespace=run.namespace, number=str(run.number))


def exit_status(run: FlowRunView) -> int:
    """Return 0 for success, else the exit code of the step that failed first, or 1."""
    if run.status == FlowStatus.SUCCEEDED:
        return 0
    failed = [step for step in run.steps if step.state == StepState.FAILED]
    first = min(failed, key=lambda step: step.since, default=None)
    return first.exit_code if first and first.exit_code in _EXIT_CODES else EXIT_FAILED


def describe_run(run: FlowRunView) -> str:
    """Return a sentence about the end of a run."""
    reason = f": {run.reason}" if run.reason else ""
    return f"run {run.number} of {run.job_id} {run.status}{reason}"


def step_row(step: RunStepView) -> ProgressRow:
    """Return the row of a step in the progress display."""
    if step.total < 2:  # a single element has no progress
        return ProgressRow("step", step.name, "", step.state, describe_step(step))
    detail = "  ".join(filter(None, [f"{step.good}/{step.total}", describe_step(step)]))
    return ProgressRow("step", step.name, "", step.state, detail, step.good, step.total)


def describe_step(step: RunStepView) -> str:
    """Return the reason why a step waits, or why it ended."""
    if step.state == StepState.WAITING:
        return f"waits for {', '.join(step.waits_for)}"
    return f"{step.reason}, until {format_time(step.until)}" if step.until else step.reason
