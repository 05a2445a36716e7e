"""An attempt at a task that is a job of a cluster, as the store keeps it."""

from enum import StrEnum

import msgspec


class RunStatus(StrEnum):
    """How far an attempt is."""

    SUBMITTING = "submitting"  # the cluster has been, or will be, asked; it may not have answered
    WAITING = "waiting"  # the cluster has it, and nobody has claimed it
    RUNNING = "running"  # it was claimed
    ENDED = "ended"
    VOID = "void"  # nobody may claim it any more, and what the cluster has of it is to be cancelled


class ClusterRun(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt. Times in nanoseconds, 0 for none; hashes are SHA-256 in hexadecimal."""

    allocation_id: str
    task: str
    number: int
    pool: str
    status: RunStatus = RunStatus.SUBMITTING
    claim_hash: str = ""
    token_hash: str = ""  # of who has claimed it
    nonce: str = ""  # by which the claimant named itself
    job_id: str = ""  # of the cluster
    host: str = ""
    submitted_at: int = 0
    claimed_at: int = 0
    stdout_base: int = 0  # position in the task's log at which its own output begins
    stderr_base: int = 0
    result: str = ""  # JSON: how it ended, as its wrapper said

    @property
    def name(self) -> str:
        """Return the name of its job."""
        return job_name(self.allocation_id)

    @property
    def comment(self) -> str:
        """Return what its job says of itself: which attempt it is."""
        return f"{self.allocation_id}/{self.task}/{self.number}"


def job_name(allocation_id: str) -> str:
    """Return the name of the jobs of an allocation."""
    return f"alloc-{allocation_id}"
