"""What an operator demands of every job."""

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """What happens to a job that breaks a rule."""

    ADVISORY = "advisory"  # it comes in with a warning
    SOFT = "soft-mandatory"  # it comes in if whoever may overrides the rule
    HARD = "hard-mandatory"  # it does not come in


class JobPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule that jobs must keep, as the configuration has it."""

    name: str
    rule: str
    level: Level = Level.HARD
    message: str = ""  # what to tell whoever breaks it; the rule itself when empty
