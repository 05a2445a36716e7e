"""The grant of a workload identity token: access to its own job only.

With this token, a task may read its job, and the variables at four paths: `nomad/jobs`,
`nomad/jobs/JOB`, `nomad/jobs/JOB/GROUP` and `nomad/jobs/JOB/GROUP/TASK`. Policies that are attached
to the job, the group or the task grant further access.
"""

from collections.abc import Iterable

from daemon.acl.grant import CapabilitySet
from daemon.acl.policy_rules import NamedRule, PolicyRules, VariableRule, parse_policy
from storage.errors import Malformed
from storage.queries import policies
from storage.read_pool import ReadSnapshot
from storage.records.acl import JobACL, Token
from storage.records.workload import Workload

_SEES = ("read", "list")
_APART = "/"  # separates allocation and task; accessors of stored tokens do not contain it


def token_label(workload: Workload) -> Token:
    """Return a token record that represents a task. Its child tokens end with the allocation."""
    return Token(
        accessor=f"{workload.nomad_allocation_id}{_APART}{workload.nomad_task}",
        name=workload.sub,
        allocation=workload.nomad_allocation_id,
        subject=f"job {workload.nomad_namespace}/{workload.nomad_job_id}",
        created_at=0,
    )


def is_of_task(accessor: str) -> bool:
    """Return whether an accessor represents a task, for which no token is stored."""
    return _APART in accessor


def policies_of_task(db: ReadSnapshot, workload: Workload) -> list[tuple[str, str]]:
    """Return the names and texts of the policies attached to a task."""
    return [
        (policy.name, policy.rules)
        for policy in policies.of_job(db, workload.nomad_job_id)
        if policy.job_acl is not None and policy_applies(policy.job_acl, workload)
    ]


def workload_capabilities(
    workload: Workload, attached: Iterable[tuple[str, str]] = ()
) -> CapabilitySet:
    """Return the grant of a task: its variables, and the `attached` policies.

    The permission to read the task's own job is not part of it (`Caller.own_job`).
    """
    named = [(name, _rules(text)) for name, text in attached]
    return CapabilitySet([("workload", _own_variable_rules(workload)), *named])


def _own_variable_rules(workload: Workload) -> PolicyRules:
    folder, paths = "nomad/jobs", ["nomad/jobs"]
    for name in (workload.nomad_job_id, workload.nomad_group, workload.nomad_task):
        folder = f"{folder}/{name}"
        paths.append(folder)
    # A name with a star would be a pattern, so it gets no variables.
    variables = tuple(
        VariableRule(path=path, capabilities=_SEES) for path in paths if "*" not in path
    )
    return PolicyRules(namespaces=(NamedRule(name=workload.nomad_namespace, variables=variables),))


def _rules(text: str) -> PolicyRules:
    try:
        return parse_policy(text)
    except Malformed:  # the policy might deny
        return parse_policy('namespace "*" { policy = "deny" }')


def policy_applies(to: JobACL, workload: Workload) -> bool:
    """Return whether a policy with the target `to` is attached to a task.

    An empty field of `to` matches any task.
    """
    pairs = (
        (to.job_id, workload.nomad_job_id),
        (to.group, workload.nomad_group),
        (to.task, workload.nomad_task),
    )
    return (
        bool(to.job_id)
        and (to.namespace or "default") == workload.nomad_namespace
        and all(not required or required == own for required, own in pairs)
    )
