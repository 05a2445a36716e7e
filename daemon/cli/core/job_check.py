"""Checks of a job file. Their errors name the position and the fix, unlike the daemon's errors."""

from collections.abc import Iterable, Mapping

import msgspec

from daemon.jobspec import cron
from daemon.jobspec.hcl.parser import read_body
from daemon.jobspec.hcl.source import Diagnostic, HclError, SourceText
from daemon.jobspec.hcl.tree import Block, Body
from storage.errors import Invalid


class _Periodic(msgspec.Struct, rename="pascal"):
    spec: str | None = None
    specs: list[str] | None = None


class _Group(msgspec.Struct, rename="pascal"):
    name: str | None = None
    tasks: list[msgspec.Raw | Mapping[str, object]] | None = None


class _Job(msgspec.Struct, rename="pascal"):
    periodic: _Periodic | None = None
    task_groups: list[_Group] | None = None


def check(job: object, file: str, text: str = "") -> None:
    """Raise `Invalid` for invalid schedules, and for groups without a task.

    `text` is the job file in HCL; without it, the error has no position.
    """
    try:
        value = msgspec.convert(job, _Job)
    except msgspec.ValidationError:  # the daemon's error has more details
        return
    _check_schedules(value.periodic, file)
    empty = [
        task_group.name or "" for task_group in value.task_groups or () if not task_group.tasks
    ]
    if empty and text:
        _raise_with_position(empty[0], file, text)


def _check_schedules(periodic: _Periodic | None, file: str) -> None:
    if periodic is None:
        return
    for spec in filter(None, [periodic.spec, *(periodic.specs or ())]):
        try:
            cron.parse(spec)
        except cron.WrongField as error:
            raise Invalid(f'{file}: periodic "{spec}": {error.message()}') from error
        except Invalid:  # the daemon's error is just as clear
            continue


def _raise_with_position(group: str, file: str, text: str) -> None:
    """Raise `Invalid` with the position of a group, if its name is in the job file."""
    source = SourceText(file, text)
    for block in _groups(read_body(source)):
        if [label.text for label in block.labels] == [group]:
            problem = Diagnostic(
                summary=f'Group "{group}" has no task',
                detail='A group needs at least one block: task "NAME" { ... }',
                source=source,
                start=block.start,
                end=block.end,
            )
            raise Invalid(HclError([problem]).explained())


def _groups(body: Body) -> Iterable[Block]:
    for job in body.blocks:
        if job.kind == "job" and isinstance(job.body, Body):
            yield from (block for block in job.body.blocks if block.kind == "group")
