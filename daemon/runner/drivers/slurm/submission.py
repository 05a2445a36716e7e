"""What an attempt becomes when it is submitted: the words of `sbatch`, and its environment. Pure.

The table is that of the facts (Slurm, section 4). No secret stands in a word: words can be seen.
"""

import math
import re

from daemon.runner.drivers.driver import Attempt, StartFailed
from daemon.runner.drivers.shim import User
from storage.records.base import SECOND
from storage.records.cluster_run import ClusterRun
from storage.records.pool import Pool

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"  # of tasks on hosts
GRACE = 900  # seconds for which a wrapper tries to reach us before its task has begun
PATIENCE = 24 * 3600  # seconds for which it tries to tell how its task ended, and what that printed
_PAUSE, _DOUBLED = 10.0, 6  # seconds; how often that is doubled: to ten minutes
_MINUTE = 60 * SECOND
_MIDDLE = 50  # the usual priority of a job
_USUAL_DISK = 300  # MB that every group asks for; hosts that book no disk would refuse even that
_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")


def cores(attempt: Attempt, pool: Pool) -> int:
    """Return how many processors it needs: those it asks for, or as many as its MHz are."""
    wanted = attempt.resources
    return wanted.cores or max(1, math.ceil(wanted.cpu / max(1, pool.mhz_per_core)))


def minutes(longest: int) -> int:
    """Return the time limit for something that may run for so long (nanoseconds).

    A minute more than that: its wrapper ends it, and the cluster only if that is gone.
    """
    return math.ceil(longest / _MINUTE) + 1


def as_user(user: User | None) -> list[str]:
    """Return the words with which a program of the cluster acts for another user, and that one's group."""
    return [f"--uid={user.uid}", f"--gid={user.gid}"] if user else []


def pause(vanished: int) -> float:
    """Return after how many seconds to submit again what the cluster has forgotten so often.

    >>> [pause(times) for times in (1, 2, 3, 4, 100)]
    [0.0, 10.0, 20.0, 40.0, 640.0]
    """
    return _PAUSE * 2.0 ** min(vanished - 2, _DOUBLED) if vanished > 1 else 0.0


def words(
    attempt: Attempt, run: ClusterRun, pool: Pool, user: User | None, *, is_root: bool
) -> list[str]:
    """Return the words of `sbatch`; `user` is whom the task runs as, None for the daemon's own.

    Raises `StartFailed` for what no word can say.
    """
    said = [
        "--parsable",
        "--no-requeue",
        f"--job-name={run.name}",
        f"--comment={run.comment}",
        f"--partition={pool.partition or run.pool}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={cores(attempt, pool)}",
        f"--mem={attempt.resources.memory_mb}",
        "--chdir=/",
        "--input=/dev/null",
        "--output=/dev/null",
        "--error=/dev/null",
        "--export=ALL",  # of a closed environment; names alone would cost a login shell on the host
    ]
    if attempt.disk_mb > _USUAL_DISK:
        said.append(f"--tmp={attempt.disk_mb}")
    if attempt.longest:
        said.append(f"--time={minutes(attempt.longest)}")
    nice = (_MIDDLE - attempt.priority) * pool.nice_per_priority
    if nice > 0 or (nice and is_root):  # only operators of the cluster may go before others
        said.append(f"--nice={nice}")
    for one in attempt.features:
        if not _FEATURE.fullmatch(one):
            raise StartFailed(
                f"constraint on ${{attr.engine.feature.{one}}}: a cluster cannot be asked for it; names "
                "of features have letters, digits and '_', '.', ':', '-'"
            )
    if attempt.features:
        said.append(f"--constraint={'&'.join(attempt.features)}")
    if pool.account:
        said.append(f"--account={pool.account}")
    if pool.qos:
        said.append(f"--qos={pool.qos}")
    return [*said, *as_user(user)]


def environment_of(*, claim: str, url: str, directory: str, ca: str) -> dict[str, str]:
    """Return what the wrapper gets: who it is, whom to ask, and where the task is to live."""
    given = {
        "PATH": PATH,
        "STEWARD_CLAIM": claim,
        "STEWARD_URL": url,
        "STEWARD_DIR": directory,
        "STEWARD_GRACE": str(GRACE),
        "STEWARD_PATIENCE": str(PATIENCE),
    }
    return {**given, "STEWARD_CA": ca} if ca else given


def job_number(answer: str) -> str:
    r"""Return the number of a job from what `sbatch --parsable` printed (`number[;cluster]`).

    >>> job_number("17;ci\n")
    '17'
    """
    found = answer.strip().partition(";")[0]
    return found if found.isdecimal() else ""
