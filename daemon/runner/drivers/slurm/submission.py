"""Build the arguments and the environment of `sbatch` for an attempt. No I/O.

Arguments hold no secret, because other users can see them.
"""

import math
import re
from collections.abc import Sequence

from daemon.runner.core.driver import Attempt, StartFailed
from storage.records.base import SECOND
from storage.records.cluster_run import ClusterRun
from storage.records.pool import Pool

# PATH of tasks on cluster hosts.
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
GRACE = 900  # seconds that a wrapper tries to connect to the daemon before its task starts
PATIENCE = 24 * 3600  # seconds that a wrapper tries to deliver its output and result
_PAUSE, _DOUBLED = 10.0, 6  # delay in seconds and its number of doublings, up to about ten minutes
_MINUTE = 60 * SECOND
_MIDDLE = 50  # the default job priority
# MB, the default of every group. A cluster that does not track disk space would reject a request.
_USUAL_DISK = 300
_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")


def cores(attempt: Attempt, pool: Pool) -> int:
    """Return the number of CPUs: the requested cores, or as many as the requested MHz need."""
    resources = attempt.resources
    return resources.cores or max(1, math.ceil(resources.cpu / max(1, pool.mhz_per_core)))


def minutes(longest: int) -> int:
    """Return the time limit in minutes for a maximum run time in nanoseconds.

    The limit is one minute longer than the maximum run time. The wrapper enforces the maximum, and
    the cluster enforces the limit only if the wrapper has died.
    """
    return math.ceil(longest / _MINUTE) + 1


def submit_delay(vanished: int) -> float:
    """Return the seconds before the next submission, after the job vanished `vanished` times.

    >>> [submit_delay(times) for times in (1, 2, 3, 4, 100)]
    [0.0, 10.0, 20.0, 40.0, 640.0]
    """
    return _PAUSE * 2.0 ** min(vanished - 2, _DOUBLED) if vanished > 1 else 0.0


def identity(run: ClusterRun, elements: int = 1) -> list[str]:
    """Return the `sbatch` arguments that name a job and, for several elements, make an array."""
    array = [f"--array=0-{elements - 1}"] if elements > 1 else []
    return [f"--job-name={run.name}", f"--comment={run.job_comment}", *array]


def sbatch_arguments(attempt: Attempt, run: ClusterRun, pool: Pool, *, is_root: bool) -> list[str]:
    """Return the `sbatch` arguments apart from `identity`; `is_root` means that root submits.

    Raises `StartFailed` for a request that no argument can express.
    """
    arguments = [
        "--parsable",
        "--no-requeue",
        f"--partition={pool.partition or run.pool}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={cores(attempt, pool)}",
        f"--mem={attempt.resources.memory_mb}",
        "--chdir=/",
        "--input=/dev/null",
        "--output=/dev/null",
        "--error=/dev/null",
        # `sbatch` runs with a restricted environment, so exporting all of it is safe. With names,
        # `--export` would start a login shell on the host.
        "--export=ALL",
    ]
    if attempt.disk_mb > _USUAL_DISK:
        arguments.append(f"--tmp={attempt.disk_mb}")
    if attempt.longest:
        arguments.append(f"--time={minutes(attempt.longest)}")
    nice = (_MIDDLE - attempt.priority) * pool.nice_per_priority
    if nice > 0 or (nice and is_root):  # only cluster operators may raise priorities
        arguments.append(f"--nice={nice}")
    for feature in attempt.features:
        if not _FEATURE.fullmatch(feature):
            raise StartFailed(
                f"constraint on ${{attr.engine.feature.{feature}}}: clusters cannot select by this "
                "feature, because its name has characters other than letters, digits and "
                "'_', '.', ':', '-'"
            )
    if attempt.features:
        arguments.append(f"--constraint={'&'.join(attempt.features)}")
    if pool.account:
        arguments.append(f"--account={pool.account}")
    if pool.qos:
        arguments.append(f"--qos={pool.qos}")
    return arguments


def environment_of(*, url: str, ca: str) -> dict[str, str]:
    """Return the environment of every wrapper: the daemon's `url` and CA certificates `ca`."""
    variables = {
        "PATH": PATH,
        "STEWARD_URL": url,
        "STEWARD_GRACE": str(GRACE),
        "STEWARD_PATIENCE": str(PATIENCE),
    }
    return {**variables, "STEWARD_CA": ca} if ca else variables


def claim_variables(claims: Sequence[str], directory: str, task: str) -> dict[str, str]:
    """Return the variables with the claims of attempts; `directory` is the pool's directory.

    If there are several claims, the attempts form an array, and all secrets end in the same random
    part. Each wrapper selects its claim by the number of its array element. Other users cannot read
    the variables, unlike the script.
    """
    starts = [claim.rpartition(".")[0] for claim in claims]
    if len(claims) == 1:
        home = f"{directory}/steward-{starts[0].partition('.')[0]}-{task}"
        return {"STEWARD_CLAIM": claims[0], "STEWARD_DIR": home}
    return {
        "STEWARD_CLAIM": claims[0].rpartition(".")[2],
        "STEWARD_DIR": directory,
        "STEWARD_TASK": task,
        "STEWARD_ELEMENTS": " ".join(starts),
    }


def job_number(answer: str) -> str:
    r"""Parse the job ID in the output of `sbatch --parsable` (`number[;cluster]`).

    >>> job_number("17;ci\n")
    '17'
    """
    identifier = answer.strip().partition(";")[0]
    return identifier if identifier.isdecimal() else ""
