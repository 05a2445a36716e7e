"""`job explain`: why allocations of a job are not running."""

import click

from daemon.cli.commands.status import show_error
from daemon.cli.core import resolve
from daemon.cli.core.follow import error_of
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.text.job_state import State
from daemon.text.placement_message import count_noun
from storage.records.explanation import Cause, Explanation
from storage.records.state import Run, StateLine

_SHOWN = 3  # errors shown


@click.command()
@click.argument("job_id", metavar="JOB")
@with_output
@with_client
def explain(client: ApiClient, screen: Screen, job_id: str) -> None:
    """Explain why JOB is not fully running, with the root cause of failures.

    Example: steward job explain web
    """
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}/explain", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.checked(Explanation))
        return
    explanation = answer.decode(Explanation)
    state = client.fetch(f"/v1/job/{segment(line.id)}/state", StateLine, namespace=line.namespace)
    running = count_noun(explanation.running, "allocation")
    screen.line(f'job "{line.id}" is {state.state}; {running} running')
    is_told = any(state.reason == reason.message for reason in explanation.reasons)
    if state.reason and not is_told and not _names_places(state, explanation):
        screen.line(f"- {state.reason}")
    if not explanation.reasons:
        screen.line("Nothing is missing")
    for reason in explanation.reasons:
        group = f'group "{reason.task_group}": ' if reason.task_group else ""
        screen.line(f"- {group}{reason.message}")
    errors = [error_of(client, alloc_id) for alloc_id in _failed(explanation)]
    if state.runs and state.runs.last_run_id:
        path = f"/v1/job/{segment(line.id)}/runs"
        runs = client.fetch(path, list[Run], namespace=line.namespace)
        errors += [run.error for run in runs[:1]]
    if not any(errors):  # the reasons of steps name no allocations
        errors = [state.error or None]
    for error in filter(None, errors):
        show_error(screen, error)


def _names_places(state: StateLine, explanation: Explanation) -> bool:
    """Return whether the reasons already explain why no node fits.

    The state's own reason would only repeat this.
    """
    return state.state in (State.BLOCKED, State.DEPLOYING) and any(
        reason.cause in (Cause.PLACE, Cause.NODE) and not reason.allocation_id
        for reason in explanation.reasons
    )


def _failed(explanation: Explanation) -> list[str]:
    """Return the first few failed allocations that the reasons name, without duplicates."""
    named = (reason.allocation_id for reason in explanation.reasons if reason.allocation_id)
    return list(dict.fromkeys(named))[:_SHOWN]
