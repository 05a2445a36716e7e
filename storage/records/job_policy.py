"""Job policies of the operator."""

from enum import StrEnum

import msgspec


class PolicyLevel(StrEnum):
    """The effect of a violated policy."""

    ADVISORY = "advisory"  # the job is accepted with a warning
    SOFT = "soft-mandatory"  # the job is accepted if an authorized caller overrides the policy
    HARD = "hard-mandatory"  # the job is rejected


class JobPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy for jobs, as configured."""

    name: str
    rule: str
    level: PolicyLevel = PolicyLevel.HARD
    message: str = ""  # text for violations; the rule itself if empty
