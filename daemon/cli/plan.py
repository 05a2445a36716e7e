"""`job plan`: what running a job file would do."""

from collections.abc import Mapping

import click
import msgspec

from daemon.cli.alloc import show_enforcement
from daemon.cli.answers import Planned
from daemon.cli.children import show_launches
from daemon.cli.client import Client, segment
from daemon.cli.differences import lines
from daemon.cli.jobfile import Given, namespace_of, read_source, registration, with_variables
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.wording import unplaced
from storage.errors import Invalid, StewardError
from storage.records.base import Record
from storage.records.evaluation import DesiredUpdates

EXIT_NOTHING = 0
EXIT_CHANGES = 1
EXIT_FAILED = 255  # 1 is an answer, so that failing needs another status


class _Victim(Record, frozen=True, kw_only=True):
    """An allocation that would have to make room."""

    id: str
    job_id: str


class Failed(click.ClickException):
    """What was asked could not be found out."""

    exit_code = EXIT_FAILED


class Misused(click.UsageError):
    """What was asked could not be understood."""

    exit_code = EXIT_FAILED


class Asking(click.Command):
    """A command whose status 1 is an answer: where it fails, it ends with another."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Read the words of the command."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise Misused(error.format_message(), error.ctx) from error

    def invoke(self, ctx: click.Context) -> object:
        """Do what the command does."""
        try:
            return super().invoke(ctx)
        except StewardError as error:
            raise Failed(str(error)) from error


@click.command(cls=Asking)
@click.argument("file")
@click.option("--diff/--no-diff", default=True, help="Show what changes [default: yes].")
@click.option("--policy-override", is_flag=True, help="Plan as if soft policies were overridden.")
@with_variables
@shown
@connected
def plan(
    client: Client, screen: Screen, file: str, *, given: Given, diff: bool, policy_override: bool
) -> int:
    """Show what running the job in FILE (- reads standard input) would do, and do nothing.

    The exit status is 0 when no allocation would begin or end, 1 when some would, and 255 when
    that could not be found out.

    Example: steward job plan web.hcl
    """
    job = registration(read_source(file), file, given)["Job"]
    body = {"Job": job, "Diff": diff, "PolicyOverride": policy_override}
    answer = client.send(
        "POST",
        f"/v1/job/{segment(_id(job, file))}/plan",
        body,
        namespace=namespace_of(client, job),
        launches=True,
        limits=True,
    )
    planned = answer.decode(Planned)
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
    found = next((names[name] for name in names if name.lower() == "id"), None)
    if not isinstance(found, str) or not found:
        raise Invalid(f'{file}: the job has no "ID"')
    return found


def _touches(updates: DesiredUpdates) -> bool:
    return bool(
        updates.place + updates.stop + updates.migrate + updates.destructive_update + updates.canary
    )


def _show(screen: Screen, planned: Planned, file: str) -> None:
    if planned.diff is not None:
        for fate, words in lines(planned.diff, verbose=screen.verbose):
            screen.changed(fate, words)
        screen.line()
    for words in unplaced(planned.failed_tg_allocs or {}):
        screen.line(words)
    if not planned.failed_tg_allocs:
        screen.line("Everything would find its place.")
    for one in planned.annotations.preempted_allocs or ():
        victim = msgspec.json.decode(one, type=_Victim)
        screen.line(f'Allocation {victim.id[:8]} of job "{victim.job_id}" would have to make room.')
    show_launches(screen, planned.next_periodic_launches)
    show_enforcement(screen, planned.limits)
    screen.line(f"Job modify index: {planned.job_modify_index}")
    screen.hint(
        f"Run it if nothing changes in between: "
        f"steward job run -check-index {planned.job_modify_index} {file}"
    )
