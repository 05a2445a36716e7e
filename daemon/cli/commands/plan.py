"""`job plan`: a dry run of a job file."""

from collections.abc import Mapping
from datetime import UTC, datetime

import click
import msgspec

from daemon.cli.commands.alloc import show_enforcement, unenforced
from daemon.cli.commands.child_jobs import show_upcoming
from daemon.cli.core.diff import diff_lines
from daemon.cli.core.flow_picture import picture
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.job_directories import with_directories
from daemon.cli.core.job_file import (
    VariableArguments,
    check_prospects,
    namespace_of,
    read_source,
    registration,
    with_variables,
)
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import PlanResult
from daemon.text.placement_message import describe_unplaced
from storage.errors import Invalid, StewardError
from storage.records.base import Record
from storage.records.evaluation import DesiredUpdates

EXIT_NOTHING = 0
EXIT_CHANGES = 1
EXIT_FAILED = 255  # 1 means changes, so failure needs another status


class _Victim(Record, frozen=True, kw_only=True):
    """An allocation that would be preempted."""

    id: str
    job_id: str


class PlanFailed(click.ClickException):
    """The plan failed."""

    exit_code = EXIT_FAILED


class PlanUsageError(click.UsageError):
    """The arguments are wrong."""

    exit_code = EXIT_FAILED


class PlanCommand(click.Command):
    """A command whose exit status 1 is a result, so failures use another status."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Parse the arguments."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise PlanUsageError(error.format_message(), error.ctx) from error

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except StewardError as error:
            raise PlanFailed(str(error)) from error


@click.command(cls=PlanCommand)
@click.argument("file")
@click.option("--diff/--no-diff", default=True, help="Show the changes [default: yes].")
@click.option("--policy-override", is_flag=True, help="Plan as if soft policies were overridden.")
@click.option(
    "--with", "directories", multiple=True, metavar="DIR", help="Directory for all tasks."
)
@with_variables
@with_output
@with_client
def plan(
    client: ApiClient,
    screen: Screen,
    file: str,
    *,
    variables: VariableArguments,
    diff: bool,
    policy_override: bool,
    directories: tuple[str, ...],
) -> int:
    """Show the effect of running the job in FILE (- reads standard input), without running it.

    The exit status is 0 if no allocation would start or stop, 1 if some would, and 255 if the plan
    failed.

    --with adds directories as "job run --with" does. Nothing is uploaded.

    Example: steward job plan web.hcl
    """
    request = registration(read_source(file), file, variables)
    request = with_directories(client, screen, request, directories, uploads=False)
    job = request["Job"]
    path = f"/v1/job/{segment(_id(job, file))}/plan"
    dubious: list[str] = []
    check_prospects(client, job, dubious.append)
    body = {"Job": job, "Diff": diff, "PolicyOverride": policy_override}
    # The submission tells the daemon which variables are sensitive.
    if submission := request.get("Submission"):
        body["Submission"] = submission
    answer = client.send(
        "POST",
        path,
        body,
        namespace=namespace_of(client, job),
        launches=True,
        limits=True,
    )
    planned = answer.decode(PlanResult)
    for words in dubious:
        if words.removeprefix("Warning: ") not in planned.warnings:
            screen.warn(words)
    if planned.warnings:
        screen.warn(planned.warnings.rstrip())
    if screen.wants_document:
        screen.document(answer.body)
    else:
        _show(screen, planned, file)
    updates = planned.annotations.desired_tg_updates.values()
    return EXIT_CHANGES if any(map(_touches, updates)) else EXIT_NOTHING


def _id(job: object, file: str) -> str:
    names = job if isinstance(job, Mapping) else {}
    job_id = next((names[name] for name in names if name.lower() == "id"), None)
    if not isinstance(job_id, str) or not job_id:
        raise Invalid(f'{file}: the job has no "ID"')
    return job_id


def _touches(updates: DesiredUpdates) -> bool:
    return bool(
        updates.place + updates.stop + updates.migrate + updates.destructive_update + updates.canary
    )


def _show(screen: Screen, planned: PlanResult, file: str) -> None:
    if planned.diff is not None:
        for diff_type, words in diff_lines(planned.diff, verbose=screen.verbose):
            screen.changed(diff_type, words)
        screen.line()
    if planned.flow is not None:
        for words in picture(planned.flow, datetime.now(UTC)):
            screen.line(words)
        screen.line()
    for words in describe_unplaced(planned.failed_tg_allocs or {}):
        screen.line(words)
    if not planned.failed_tg_allocs:
        screen.line("All allocations can be placed.")
    for preempted_alloc in planned.annotations.preempted_allocs or ():
        victim = msgspec.json.decode(preempted_alloc, type=_Victim)
        screen.line(f'Allocation {victim.id[:8]} of job "{victim.job_id}" would be preempted.')
    show_upcoming(screen, planned.next_periodic_launches)
    if screen.verbose:
        show_enforcement(screen, planned.limits)
    elif words := unenforced(planned.limits):
        screen.line(words)
    screen.line(f"Job modify index: {planned.job_modify_index}")
    screen.hint(
        f"Run this plan, unless the job has changed in the meantime: "
        f"steward job run -check-index {planned.job_modify_index} {file}"
    )
