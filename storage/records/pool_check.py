"""What was found when the way to a cluster was looked at, step by step."""

from storage.records.base import Record


class PoolFinding(Record, frozen=True, kw_only=True):
    """One step: what was looked at, whether it is as it must be, and a sentence that says it."""

    step: str
    good: bool
    message: str


class PoolCheck(Record, frozen=True, kw_only=True):
    """The steps in order; one that is not good is the last: what follows needs it."""

    pool: str
    engine: str
    partition: str
    findings: list[PoolFinding]

    @property
    def good(self) -> bool:
        """Tell whether jobs can be submitted, as far as this can be seen from here."""
        return all(finding.good for finding in self.findings)
