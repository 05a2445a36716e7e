"""Warnings about valid but suspicious jobs."""

from collections.abc import Iterator
from itertools import pairwise

from daemon.jobspec import cron
from daemon.jobspec.rules.blocks import DEFAULT_IDENTITY
from daemon.jobspec.rules.unsupported import unsupported_fields
from daemon.jobspec.steward_meta.job_keys import FREQUENT_LAUNCHES
from daemon.text.go_format import join_errors, quote, wrap_error
from storage.errors import Invalid
from storage.records.base import MINUTE, SECOND
from storage.records.group import TaskGroup
from storage.records.job import Job, Periodic
from storage.records.task import Identity, Service, Task, Template

_SECRETS_IDENTITY = "vault_"
_MOST_PARSED = 32 * 1024  # characters of the templates of a job: parsing takes up to 15 µs each
_LOOKED_AT = 10  # launches per cron expression


class _ParsedCharacters:
    """The length of all templates of a job that were parsed. Longer ones are not parsed."""

    def __init__(self) -> None:
        self._left = _MOST_PARSED

    def add(self, length: int) -> bool:
        """Count a template; return whether it may be parsed."""
        if length > self._left:
            return False
        self._left -= length
        return True


def warnings(job: Job, *, oversubscription: bool) -> Iterator[str]:
    """Yield the warnings about a job.

    `oversubscription` means that tasks may use more memory than they reserve.
    """
    groups = job.task_groups or []
    parsed = _ParsedCharacters()
    for group in groups:
        yield from wrap_error(f"Group {quote(group.name)} has warnings", _group(group, parsed))
    for group in groups:
        yield from _shutdown_delays(group)
    yield from _auto_promote(groups)
    if job.periodic is not None:
        yield from _launches(job.periodic, frequent=FREQUENT_LAUNCHES.of(job.meta))
    for group in groups:
        for task in group.tasks or ():
            yield from _secrets_identities(task)
    yield from unsupported_fields(job)
    if oversubscription:
        return
    for group in groups:
        for task in group.tasks or ():
            if task.resources.memory_max_mb:
                yield (
                    f'Memory oversubscription is not enabled; Task "{group.name}.{task.name}" '
                    "memory_max value will be ignored. Update the Scheduler Configuration to "
                    "allow oversubscription."
                )


def _launches(periodic: Periodic, *, frequent: bool) -> Iterator[str]:
    if periodic.spec:
        yield "cron is deprecated and may be removed in a future release. Use crons instead"
    for spec in filter(None, [periodic.spec, *(periodic.specs or ())]):
        try:
            seconds, first = cron.parse(spec).seconds, cron.next_after(spec, 0)
        except Invalid:
            continue  # the validation reports it as an error
        if first is None:
            yield f"cron {quote(spec)} has no launches: no date matches it"
        elif len(seconds) > 1 and not frequent:
            gap = min(later - earlier for earlier, later in pairwise((*seconds, seconds[0] + 60)))
            yield f"cron {quote(spec)} has launches only {gap} s apart"
            return
    if not frequent and len(periodic.specs or ()) > 1 and (close := _closest(periodic)) < MINUTE:
        yield f"its crons together have launches only {close // SECOND} s apart"


def _closest(periodic: Periodic) -> int:
    """Return the shortest time between two slots of a schedule, in nanoseconds.

    Only the first `_LOOKED_AT` slots of each cron expression are compared.
    """
    slots: set[int] = set()
    for spec in periodic.specs or ():
        slot: int | None = 0
        for _ in range(_LOOKED_AT):
            try:
                slot = cron.next_after(spec, slot or 0)
            except Invalid:
                break  # the validation reports it as an error
            if slot is None:
                break
            slots.add(slot)
    return min((later - earlier for earlier, later in pairwise(sorted(slots))), default=MINUTE)


def _group(group: TaskGroup, parsed: _ParsedCharacters) -> Iterator[str]:
    if group.update and 1 < group.count < group.update.max_parallel:
        yield (
            "Update max parallel count is greater than task group count "
            f"({group.update.max_parallel} > {group.count}). A destructive change would result in "
            "the simultaneous replacement of all allocations."
        )
    if group.networks and group.networks[0].mbits > 0:
        yield (
            "mbits has been deprecated as of Nomad 0.12.0. "
            "Please remove mbits from the network block"
        )
    yield from _services(group.services)
    if group.tasks and all(task.lifecycle and task.lifecycle.hook for task in group.tasks):
        yield "Group has no main task: its sidecars are stopped as soon as they run"
    for task in group.tasks or ():
        yield from wrap_error(f"Task {quote(task.name)} has warnings", _task(task, parsed))


def _task(task: Task, parsed: _ParsedCharacters) -> Iterator[str]:
    if task.resources.iops:
        yield "IOPS has been deprecated as of Nomad 0.9.0. Please remove IOPS from resource block."
    if task.resources.networks:
        yield (
            "task network resources have been deprecated as of Nomad 0.12.0. "
            "Please configure networking via group network block."
        )
    for number, template in enumerate(task.templates or ()):
        if template.vault_grace:
            yield (
                f"Template[{number}] VaultGrace has been deprecated as of Nomad 0.11 and ignored "
                "since Vault 0.5. Please remove VaultGrace / vault_grace from template block."
            )
        if problem := _syntax_error(template, parsed):
            yield f"Template[{number}] cannot be rendered: {problem}"
    yield from _services(task.services)
    for identity in task.identities or ():
        yield from join_errors(
            f"Identity[{identity.name}] {warning}" for warning in _identity(identity)
        )


def _syntax_error(template: Template, parsed: _ParsedCharacters) -> str:
    """Return why the text of a template cannot be parsed; empty if it can, or is not known yet."""
    source = template.embedded_tmpl
    if (template.left_delim or "{{") not in source or not parsed.add(len(source)):
        return ""
    # imported late, because simple jobs have no templates
    from daemon.templates.render import syntax_error

    reason, similar = syntax_error(source, template.left_delim, template.right_delim)
    hint = f"; did you mean {quote(similar)}?" if similar else ""
    return reason and f"data (EmbeddedTmpl): {reason}{hint}"


def _services(services: list[Service] | None) -> Iterator[str]:
    for service in services or ():
        if service.identity is not None:
            for warning in _identity(service.identity):
                yield f"Service {quote(service.name)}: {warning}"


def _identity(identity: Identity) -> Iterator[str]:
    count = len(identity.audience or ())
    if count == 0:
        yield "identities without an audience are insecure"
    elif count > 1:
        yield (
            "while multiple audiences is allowed, it is more secure to use 1 audience per identity"
        )
    if identity.name not in ("", DEFAULT_IDENTITY) and identity.ttl == 0:
        yield "identities without an expiration are insecure"
    if identity.env and identity.change_mode != "restart":
        yield (
            'using env=true without change_mode="restart" may result in task not getting updated '
            "identity"
        )


def _secrets_identities(task: Task) -> Iterator[str]:
    if task.secrets_config is not None:
        return
    for identity in task.identities or ():
        if identity.name.startswith(_SECRETS_IDENTITY):
            yield f"Task {task.name} has an identity called {identity.name} but no vault block"


def _auto_promote(groups: list[TaskGroup]) -> Iterator[str]:
    updates = [group.update for group in groups if group.update is not None]
    # A deployment without canaries needs no promotion.
    any_promotes = any(update.auto_promote for update in updates)
    all_promote = all(update.auto_promote or not update.canary for update in updates)
    if any_promotes and not all_promote:
        yield "auto_promote must be true for all groups to enable automatic promotion"


def _shutdown_delays(group: TaskGroup) -> Iterator[str]:
    """Yield a warning for services whose tasks stop before clients can notice the stop."""
    tasks, services = group.tasks or [], group.services or []
    owners = {service.task_name for service in services if service.task_name}
    name = quote(group.name)
    for task in tasks:
        if task.name in owners and task.shutdown_delay == 0:
            yield (
                f"group {name} references task {quote(task.name)} in a service definition, but "
                "the task has no shutdown_delay set"
            )
        if task.services and task.shutdown_delay <= 0:
            yield (
                f"task {quote(task.name)} in group {name} defines services, but has no "
                "shutdown_delay set"
            )
    unowned = any(not service.task_name for service in services)
    delayed = (group.shutdown_delay or 0) > 0 or any(task.shutdown_delay > 0 for task in tasks)
    if unowned and not delayed:
        yield (
            f"group {name} defines services, but neither the group nor any of its tasks have "
            "shutdown_delay set"
        )
