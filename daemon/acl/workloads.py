"""What a task may do that shows its identity token: what belongs to its own job, and no more.

It may look at its job, and read the variables below `nomad/jobs` that are the job's, the group's
and its own. Policies that name the job, the group or the task add to that.
"""

from collections.abc import Iterator

from daemon.acl.grant import Grant, NamedPolicy
from daemon.acl.policies import NamedRule, Rules, VariableRule, parse
from storage.errors import Malformed
from storage.queries import policies
from storage.readers import Snapshot
from storage.records.acl import JobACL, Token
from storage.records.workload import Workload

_SEES = ("read", "list")


def token_of(workload: Workload) -> Token:
    """Return what stands for a task where tokens are named."""
    return Token(
        accessor=f"{workload.nomad_allocation_id}/{workload.nomad_task}",
        name=workload.sub,
        created_at=0,
    )


def grant_of(db: Snapshot, workload: Workload) -> Grant:
    """Return what a task may do besides looking at its job."""
    return Grant([("workload", _own(workload)), *_policies(db, workload)])


def _own(workload: Workload) -> Rules:
    folder, paths = "nomad/jobs", ["nomad/jobs"]
    for name in (workload.nomad_job_id, workload.nomad_group, workload.nomad_task):
        folder = f"{folder}/{name}"
        paths.append(folder)
    # A name with a star in it would be a pattern: it gets nothing.
    variables = tuple(
        VariableRule(path=path, capabilities=_SEES) for path in paths if "*" not in path
    )
    return Rules(namespaces=(NamedRule(name=workload.nomad_namespace, variables=variables),))


def _policies(db: Snapshot, workload: Workload) -> Iterator[NamedPolicy]:
    for policy in policies.every(db, ""):
        if policy.job_acl is None or not applies(policy.job_acl, workload):
            continue
        try:
            yield policy.name, parse(policy.rules)
        except Malformed:  # it might have denied
            yield policy.name, parse('namespace "*" { policy = "deny" }')


def applies(to: JobACL, workload: Workload) -> bool:
    """Tell whether a policy is for a task; what it does not name does not matter."""
    pairs = (
        (to.job_id, workload.nomad_job_id),
        (to.group, workload.nomad_group),
        (to.task, workload.nomad_task),
    )
    return (
        bool(to.job_id)
        and (to.namespace or "default") == workload.nomad_namespace
        and all(not wanted or wanted == own for wanted, own in pairs)
    )
