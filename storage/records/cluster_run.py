"""A task attempt that is a job of a cluster, as stored."""

from enum import StrEnum

import msgspec


class RunStatus(StrEnum):
    """The progress of an attempt."""

    SUBMITTING = "submitting"  # submission is pending or not confirmed
    WAITING = "waiting"  # the cluster has the job, which is not claimed yet
    RUNNING = "running"  # claimed
    ENDED = "ended"
    VOID = "void"  # withdrawn: it cannot be claimed, and its job must be cancelled


class ClusterRun(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt. Times are in nanoseconds, 0 if unset; hashes are SHA-256 in hexadecimal."""

    allocation_id: str
    task: str
    number: int
    pool: str
    status: RunStatus = RunStatus.SUBMITTING
    claim_hash: str = ""
    token_hash: str = ""  # the hash of the token of the wrapper that has claimed the attempt
    nonce: str = ""  # identifies the wrapper
    array: str = ""  # job name of the Slurm array; empty for a single job
    element: int = -1  # the number of the element in the array
    job_id: str = ""  # the ID of the job in the cluster; ARRAY_ELEMENT for an element
    host: str = ""
    submitted_at: int = 0
    claimed_at: int = 0
    stdout_base: int = 0  # offset in the task's log at which its output begins
    stderr_base: int = 0
    result: str = ""  # JSON: the exit result that its wrapper reported

    @property
    def name(self) -> str:
        """Return the name of the cluster job. All elements of an array share this name."""
        return self.array or job_name(self.allocation_id)

    @property
    def comment(self) -> str:
        """Return the name of the attempt.

        It is also the comment of the cluster job, unless the job is an array.
        """
        return f"{self.allocation_id}/{self.task}/{self.number}"

    @property
    def job_comment(self) -> str:
        """Return the comment of the cluster job. The comment of an array is its unique name."""
        return self.array or self.comment


def job_name(allocation_id: str) -> str:
    """Return the name of an allocation's job in the cluster."""
    return f"alloc-{allocation_id}"
