"""The result of a step-by-step check of a cluster."""

from storage.records.base import Record


class PoolFinding(Record, frozen=True, kw_only=True):
    """The result of one step of a check: its subject, success or failure, and a description."""

    step: str
    good: bool
    message: str


class PoolCheck(Record, frozen=True, kw_only=True):
    """The results of the steps, in order. The check stops at the first failed step."""

    pool: str
    engine: str
    partition: str
    findings: list[PoolFinding]

    @property
    def good(self) -> bool:
        """Return whether all steps succeeded, so that jobs can be submitted."""
        return all(finding.good for finding in self.findings)
