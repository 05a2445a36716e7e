"""Job policies: an operator's rules for every job that is submitted, changed or scaled.

A rule is a filter expression (`filters/policy_rule.py`) over the complete job. Every entry point
for jobs calls `JobPolicySet.check`. Before that, the API checks whether the caller may override
policies.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from daemon.text.go_format import quote
from storage.errors import Denied, Invalid, Malformed
from storage.records.job import Job
from storage.records.job_policy import JobPolicy, PolicyLevel

if TYPE_CHECKING:
    from daemon.jobspec.filters.policy_rule import PolicyFilter


class JobPolicySet:
    """The compiled policies of a configuration."""

    def __init__(self, policies: Iterable[JobPolicy] = ()) -> None:
        """Compile the policies. Raises `Invalid` with the policy's name if a rule is malformed."""
        self._rules = [(policy, _rule(policy)) for policy in policies]

    def become(self, other: "JobPolicySet") -> None:
        """Replace the policies with those of another set."""
        self._rules = other._rules  # noqa: SLF001  # of the same class

    def check(self, job: Job, *, override: bool) -> list[str]:
        """Return the warnings about a job. Raises `Denied` if a policy rejects it.

        With `override`, violations of overridable rules only warn.
        """
        document = msgspec.to_builtins(job) if self._rules else None
        broken = [
            (policy, reason)
            for policy, rule in self._rules
            if (reason := _reason(policy, rule, document))
        ]
        overruled = (
            (PolicyLevel.ADVISORY, PolicyLevel.SOFT) if override else (PolicyLevel.ADVISORY,)
        )
        if refusals := [reason for policy, reason in broken if policy.level not in overruled]:
            raise Denied(f"job {quote(job.id)} is denied: {'; '.join(refusals)}")
        return [reason for _, reason in broken]


def _rule(policy: JobPolicy) -> "PolicyFilter":
    from daemon.jobspec.filters.policy_rule import PolicyFilter  # few daemons have policies

    try:
        return PolicyFilter(policy.rule, Job)
    except Malformed as error:
        raise Invalid(f"job_policies, {quote(policy.name)}, rule: {error}") from error


def _reason(policy: JobPolicy, rule: "PolicyFilter", document: object) -> str:
    """Return how a job violates a rule; empty if it does not.

    A rule that cannot be evaluated for a job counts as violated, so that no job escapes the rule.
    """
    try:
        if rule.matches(document):
            return ""
        why = policy.message or f"not {policy.rule}"
    except Malformed as error:
        why = str(error)
    return f"policy {quote(policy.name)} ({policy.level}): {why}"
