"""Limits of the daemon, its launcher and its tasks, as reported by the kernel."""

import os
from collections.abc import Iterator
from contextlib import suppress

import trio

from daemon.config.settings import Settings
from daemon.confinement import report
from daemon.confinement.report import Finding
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import NotFound, Refused
from storage.queries import allocations, jobs
from storage.read_pool import ReadSnapshot
from storage.records.driver import is_listed
from storage.records.operator_api import ConfinedProcess, ConfinementRule, ConfinementShown

_DRIVERS = ("exec", "raw_exec")  # drivers whose tasks are processes of this host
_MOST = 50  # allocations searched for one example task per driver


async def show(request: Request) -> HandlerReply:
    """Show the limits of the daemon, its launcher, and one task of each local driver."""
    parts = request.parts
    examples = await parts.store.read_long(lambda db: _examples(db, parts.tasks.node_id))
    processes = [_process("daemon", os.getpid(), report.of_daemon())]
    has_users = os.geteuid() == 0  # whether tasks can have other users
    if (pid := report.launcher()) is not None:
        has_users = has_users or report.user_of(pid) == 0
        processes.append(_process("launcher", pid, report.of_launcher(pid)))
    for driver, alloc_id, task in examples:
        if any(process.name == driver for process in processes):
            continue
        with suppress(NotFound, Refused, OSError):  # the task may end in the meantime
            usage = (await parts.tasks.usage(alloc_id)).tasks.get(task)
            pids = [int(pid) for pid in usage.pids] if usage else []
            result = await trio.to_thread.run_sync(_read_reports, pids, driver)
            if result:
                pid, findings = result
                processes.append(_process(driver, pid, findings, alloc_id, task))
    guard = Finding("task_egress", *parts.tasks.egress())
    git = Finding("git", *parts.tasks.git_isolation())
    node = [_rule(rule) for rule in (*_of_node(parts.config, has_users=has_users), guard, git)]
    return HandlerReply(body=ConfinementShown(processes=processes, node=node))


def _examples(db: ReadSnapshot, node_id: str) -> list[tuple[str, str, str]]:
    """Return driver, allocation ID and task name of each running task with a local driver.

    The newest allocations come first.
    """
    examples = []
    for alloc in allocations.newest_running(db, node_id, _MOST):
        job = jobs.version(db, alloc.namespace, alloc.job_id, alloc.job_version)
        groups = job.task_groups or [] if job else []
        tasks = [
            task for group in groups if group.name == alloc.task_group for task in group.tasks or []
        ]
        examples += [
            (task.driver, alloc.id, task.name) for task in tasks if is_listed(task.driver, _DRIVERS)
        ]
    return examples


def _read_reports(pids: list[int], driver: str) -> tuple[int, list[Finding]] | None:
    pid = report.main_process(pids, is_walled=driver == "exec")
    return None if pid is None else (pid, report.of_task(pid))


def _of_node(config: Settings, *, has_users: bool) -> Iterator[Finding]:
    """Yield findings about all tasks: settings, and the mount options of task directories.

    `has_users` means that tasks can run as other users than the daemon's.
    """
    yield report.mount_flags(str(config.alloc_dir), report.mounts())
    users = ", ".join(config.permitted_users)
    yield Finding("task_users", "*" not in config.permitted_users, f"tasks may run as {users}")
    if not config.runs_raw_exec:
        yield Finding("raw_exec", True, "off")
    elif not has_users:
        yield Finding("raw_exec", False, "on: tasks run as the daemon's user, without isolation")
    else:
        whom = "root as well" if config.permits_root else "permitted users"
        yield Finding("raw_exec", False, f"on: tasks run without isolation, as {whom}")
    opens = config.opens_filters
    reason = (
        "tasks can relax their own filter with a separate capability"
        if opens
        else "no task can relax its own filter"
    )
    yield Finding("exec_unfiltered", not opens, reason)


def _process(
    name: str, pid: int, findings: list[Finding], alloc_id: str = "", task: str = ""
) -> ConfinedProcess:
    rules = [_rule(finding) for finding in findings]
    return ConfinedProcess(name=name, pid=pid, alloc_id=alloc_id, task=task, rules=rules)


def _rule(finding: Finding) -> ConfinementRule:
    return ConfinementRule(rule=finding.rule, holds=finding.holds, reason=finding.reason)
