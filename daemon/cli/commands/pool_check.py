"""`pool check`: test of a cluster with read-only checks and a small job."""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click
import msgspec

from daemon.cli.core.command_tree import EXIT_ERROR
from daemon.cli.core.follow import current_allocations, finished, unfinished, why_failed
from daemon.cli.core.formatting import seconds
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen, SilentDisplay
from daemon.cli.core.responses import AllocationItem, RegisterResult
from daemon.text.placement_message import describe_failures
from storage.errors import Invalid
from storage.records.allocation import CLIENT_TERMINAL, ClientStatus, TaskEvent
from storage.records.base import SECOND, Record
from storage.records.evaluation import EvalStatus
from storage.records.pool import SLURM
from storage.records.pool_check import PoolCheck, PoolFinding

_SAYS = "steward pool check"
_SCRIPT = f"echo '{_SAYS}'; uname -n; date +%s"
_TASK = "check"
_NO_OUTPUT = "the output of the job is missing: hosts cannot send it to the daemon"
_MOST_SKEW = 5.0  # seconds of clock skew between cluster and daemon; less may be network delay


@click.command()
@click.argument("name", metavar="[POOL]", required=False)
@click.option("--timeout", default="2m", metavar="TIME", help="Time limit.")
@click.option("--no-job", is_flag=True, help="Submit no job.")
@with_output
@with_client
def check(
    client: ApiClient, screen: Screen, name: str | None, *, timeout: str, no_job: bool
) -> int:
    """Check the connection to the cluster of POOL, run a job there, and show each step.

    With a single cluster pool, POOL is optional. The daemon runs the checks with its PATH and its
    user. It removes the test job afterwards, even if it has not started in time.

    Example: steward pool check hpc
    """
    longest = seconds("-timeout", timeout)
    name = name or _only_pool(client)
    seen = client.send("POST", f"/v1/node/pool/{segment(name)}/check").decode(PoolCheck)
    steps = _Steps(screen)
    for finding in seen.findings:
        steps.add(finding.step, finding.message, good=finding.good)
    if seen.good and not no_job:
        _Trial(client, name, seen.engine, steps, time.monotonic() + longest).run()
    result = msgspec.structs.replace(seen, findings=steps.found)
    if screen.wants_document:
        screen.document(msgspec.json.encode(result))
    return 0 if result.good else EXIT_ERROR


class _Pooled(Record, frozen=True, kw_only=True):
    node_pool: str
    drivers: Mapping[str, object] = {}


def _only_pool(client: ApiClient) -> str:
    """Return the only cluster pool. Raises `Invalid` unless there is exactly one."""
    pools = [
        node.node_pool for node in client.fetch("/v1/nodes", list[_Pooled]) if SLURM in node.drivers
    ]
    if len(pools) == 1:
        return pools[0]
    if not pools:
        raise Invalid("there is no cluster pool: add [pools.NAME] to the daemon's configuration")
    raise Invalid(f"there are several cluster pools: name one of {', '.join(sorted(pools))}")


class _Steps:
    """The results so far, printed as they arrive."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.found: list[PoolFinding] = []

    def add(self, step: str, message: str, *, good: bool = True) -> None:
        self.found.append(PoolFinding(step=step, good=good, message=message))
        if not self._screen.wants_document:
            self._screen.line(f"{'ok' if good else 'FAILED':<8}{step:<16}{message}")


class _Trial(NamedTuple):
    """A small job on a cluster, from its submission to its removal."""

    client: ApiClient
    pool: str
    driver: str
    steps: _Steps
    ends: float  # monotonic time

    def run(self) -> None:
        """Run the job and report its outcome."""
        job_id = f"pool-check-{secrets.token_hex(4)}"
        job = _job(job_id, self.pool, self.driver)
        registered = self.client.send("POST", "/v1/jobs", {"Job": job}).decode(RegisterResult)
        try:
            self._follow(job_id, registered.eval_id)
        finally:
            self.client.act("DELETE", f"/v1/job/{segment(job_id)}", purge=True)
            self.steps.add("cleaned up", f"job {job_id} was removed")

    def _follow(self, job_id: str, eval_id: str) -> None:
        evaluation = finished(self.client, SilentDisplay(), eval_id)
        if evaluation.status != EvalStatus.COMPLETE or evaluation.failed_tg_allocs:
            why = describe_failures(evaluation) or [unfinished(evaluation)]
            self.steps.add("submitted", "; ".join(why), good=False)
            return
        self.steps.add("submitted", f"job {job_id}")
        path, seen_count, index = f"/v1/job/{segment(job_id)}/allocations", 0, 0
        while True:
            left = self.ends - time.monotonic()
            answer = self.client.read(path, index=index, wait=f"{max(left, 0.0):.3f}s")
            line = current_allocations(answer.decode(list[AllocationItem]))[-1]
            events = line.task_states[_TASK].events or [] if line.task_states else []
            for event in events[seen_count:]:
                self.steps.add(event.type, event.display_message)
            seen_count, index = len(events), max(answer.index, 1)
            if line.client_status in CLIENT_TERMINAL:
                self._report_result(line, events)
                return
            if left <= 0:
                self.steps.add(
                    "result", f"the time limit has passed: {_waits(line, events)}", good=False
                )
                return

    def _report_result(self, line: AllocationItem, events: Sequence[TaskEvent]) -> None:
        if line.client_status != ClientStatus.COMPLETE:
            self.steps.add("result", why_failed(line), good=False)
            return
        path = f"/v1/client/fs/logs/{segment(line.id)}"
        body = self.client.read(path, task=_TASK, type="stdout", plain=True).body
        host_word, host, clock = [*body.decode(errors="replace").splitlines(), "", "", ""][:3]
        is_good = host_word == _SAYS
        self.steps.add("output", f"it ran on {host}" if is_good else _NO_OUTPUT, good=is_good)
        self._report_skew(clock, events)
        self.steps.add("result", "complete")

    def _report_skew(self, clock: str, events: Sequence[TaskEvent]) -> None:
        began = [event.time / SECOND for event in events if event.type == "Started"]
        if clock.isdecimal() and began:
            skew = int(clock) - began[-1]
            if abs(skew) > _MOST_SKEW:
                words = f"the host's clock differs by {skew:+.0f} s from the daemon's: synchronize both with NTP"
                self.steps.add("clock", words)


def _job(job_id: str, pool: str, driver: str) -> dict[str, object]:
    """Return the test job, which prints the name and the time of its host."""
    task = {
        "Name": _TASK,
        "Driver": driver,
        "Config": {"command": "/bin/sh", "args": ["-c", _SCRIPT]},
        "Resources": {"CPU": 1, "MemoryMB": 50},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    group = {
        "Name": "check",
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "EphemeralDisk": {"SizeMB": 10},
        "Tasks": [task],
    }
    return {"ID": job_id, "Type": "batch", "NodePool": pool, "TaskGroups": [group]}


def _waits(line: AllocationItem, events: Sequence[TaskEvent]) -> str:
    news = events[-1].display_message if events else line.client_description
    return f"the job is {line.client_status} ({news or 'no events'})"
