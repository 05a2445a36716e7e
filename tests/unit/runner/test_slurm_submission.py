"""The submission of an attempt to a cluster."""

from typing import Any

import msgspec
import pytest

from daemon.runner.core.driver import Attempt, StartFailed
from daemon.runner.drivers.slurm.submission import (
    claim_variables,
    environment_of,
    identity,
    job_number,
    minutes,
    sbatch_arguments,
    submit_delay,
)
from storage.records.base import MINUTE, SECOND
from storage.records.cluster_run import ClusterRun
from storage.records.pool import SLURM, Pool
from storage.records.task import Resources

RUN = ClusterRun(allocation_id="a1", task="main", number=2, pool="hpc")


def submitted(pool: Pool | None = None, *, is_root: bool = False, **fields: Any) -> list[str]:
    attempt = Attempt(
        **{
            "alloc_id": "a1",
            "task": "main",
            "number": 2,
            "directory": "/d",
            "config": {"command": "x"},
            "env": {},
            **fields,
        }
    )
    said = sbatch_arguments(attempt, RUN, pool or Pool(engine=SLURM), is_root=is_root)
    return [*said, *identity(RUN)]


def value(said: list[str], name: str) -> str | None:
    """Return the value of an option; None if it is missing."""
    found = [line.partition("=")[2] for line in said if line.startswith(f"--{name}=")]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("resources", "per_core", "cores"),
    [
        (Resources(cpu=100), 1000, "1"),
        (Resources(cpu=1000), 1000, "1"),
        (Resources(cpu=1001), 1000, "2"),
        (Resources(cpu=4000), 2500, "2"),
        (Resources(cpu=4000, cores=3), 1000, "3"),
    ],
)
def test_cpus_are_whole_numbers(resources: Resources, per_core: int, cores: str) -> None:
    said = submitted(Pool(engine=SLURM, mhz_per_core=per_core), resources=resources)
    assert value(said, "cpus-per-task") == cores


def test_job_names_its_attempt_and_is_never_requeued() -> None:
    said = submitted()
    assert value(said, "job-name") == "alloc-a1"
    assert value(said, "comment") == "a1/main/2"
    assert value(said, "partition") == "hpc"
    assert "--no-requeue" in said


def test_secret_is_only_in_the_environment() -> None:
    assert environment_of(url="http://u", ca="PEM")["STEWARD_CA"] == "PEM"
    assert claim_variables(["a1.2.secret"], "/d", "main") == {
        "STEWARD_CLAIM": "a1.2.secret",
        "STEWARD_DIR": "/d/steward-a1-main",
    }
    assert value(submitted(), "export") == "ALL"


def test_elements_of_an_array_share_name_and_secret() -> None:
    row = msgspec.structs.replace(RUN, array="array-1", element=0)
    array = ["--job-name=array-1", "--comment=array-1", "--array=0-2"]
    assert identity(row, 3) == array
    claims = ["a1.2.secret", "a2.0.secret", "a3.0.secret"]
    assert claim_variables(claims, "/d", "main") == {
        "STEWARD_CLAIM": "secret",
        "STEWARD_DIR": "/d",
        "STEWARD_TASK": "main",
        "STEWARD_ELEMENTS": "a1.2 a2.0 a3.0",
    }


@pytest.mark.parametrize(
    ("longest", "limit"), [(SECOND, 2), (MINUTE, 2), (61 * SECOND, 3), (90 * MINUTE, 91)]
)
def test_time_limit_of_the_cluster_exceeds_that_of_the_wrapper(longest: int, limit: int) -> None:
    assert minutes(longest) == limit
    assert value(submitted(longest=longest), "time") == str(limit)


def test_endless_task_has_no_time_limit() -> None:
    assert value(submitted(), "time") is None


@pytest.mark.parametrize(
    ("priority", "is_root", "nice"),
    [(50, True, None), (30, False, "2000"), (80, True, "-3000"), (80, False, None)],
)
def test_priority_becomes_a_nice_value(priority: int, is_root: bool, nice: str | None) -> None:
    assert value(submitted(priority=priority, is_root=is_root), "nice") == nice


def test_feature_constraints_are_passed_to_the_cluster() -> None:
    assert value(submitted(features=("gpu", "node1")), "constraint") == "gpu&node1"


@pytest.mark.parametrize("feature", ["a|b", "", "-x", "a b", "a&b"])
def test_invalid_feature_is_refused(feature: str) -> None:
    with pytest.raises(StartFailed, match="clusters cannot select by this feature"):
        submitted(features=("gpu", feature))


def test_account_and_qos_are_pool_settings() -> None:
    said = submitted(Pool(engine=SLURM, partition="p", account="lab", qos="long"))
    assert (value(said, "account"), value(said, "qos"), value(said, "partition")) == (
        "lab",
        "long",
        "p",
    )


def test_disk_is_requested_if_configured() -> None:
    assert value(submitted(disk_mb=300), "tmp") is None
    assert value(submitted(disk_mb=5000), "tmp") == "5000"


def test_job_number_precedes_the_cluster_name() -> None:
    assert job_number("17\n") == "17"
    assert job_number("17;ci\n") == "17"
    assert job_number("nonsense") == ""


def test_repeatedly_lost_job_is_submitted_with_growing_delays() -> None:
    assert [submit_delay(times) for times in range(5)] == [0, 0, 10, 20, 40]
    assert submit_delay(10_000) == 640
