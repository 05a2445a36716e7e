"""Policies: what an operator demands of every job that comes in, is changed or scaled.

Their rules are filter expressions (`filters/rule.py`) about the complete job. Whoever lets a job
in asks `Policies.check`; whether the caller may override is asked before, where rights are known.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from daemon.jobspec.gotext import quote
from storage.errors import Denied, Invalid, Malformed
from storage.records.job import Job
from storage.records.rule import JobPolicy, Level

if TYPE_CHECKING:
    from daemon.jobspec.filters.rule import Rule


class Policies:
    """The policies of a configuration, ready to be asked."""

    def __init__(self, policies: Iterable[JobPolicy] = ()) -> None:
        """Raise `Invalid`, which names the policy, when a rule cannot be read."""
        self._rules = [(policy, _rule(policy)) for policy in policies]

    def become(self, other: "Policies") -> None:
        """Ask for what others ask for, from now on."""
        self._rules = other._rules  # noqa: SLF001  # of our own kind

    def check(self, job: Job, *, override: bool) -> list[str]:
        """Return what there is to warn of. Raises `Denied` if the job may not come in.

        With `override`, rules that are not mandatory at all costs only warn.
        """
        document = msgspec.to_builtins(job) if self._rules else None
        broken = [
            (policy, reason)
            for policy, rule in self._rules
            if (reason := _reason(policy, rule, document))
        ]
        overruled = (Level.ADVISORY, Level.SOFT) if override else (Level.ADVISORY,)
        if refusals := [reason for policy, reason in broken if policy.level not in overruled]:
            raise Denied(f"job {quote(job.id)} is denied: {'; '.join(refusals)}")
        return [reason for _, reason in broken]


def _rule(policy: JobPolicy) -> "Rule":
    from daemon.jobspec.filters.rule import Rule  # most have no policies

    try:
        return Rule(policy.rule, Job)
    except Malformed as error:
        raise Invalid(f"job_policies, {quote(policy.name)}, rule: {error}") from error


def _reason(policy: JobPolicy, rule: "Rule", document: object) -> str:
    """Return in which way a job breaks a rule; empty when it does not.

    A rule that cannot be decided is broken: what a policy does not know it does not let in.
    """
    try:
        if rule.holds(document):
            return ""
        why = policy.message or f"not {policy.rule}"
    except Malformed as error:
        why = str(error)
    return f"policy {quote(policy.name)} ({policy.level}): {why}"
