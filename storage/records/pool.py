"""A node pool on a cluster, as configured."""

import msgspec

SLURM = "slurm"  # the only engine, and the name of its driver
ENGINES = (SLURM,)


class Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node pool that is a partition of a cluster, as configured.

    `cluster_config` is the cluster's configuration file if it is not the default. `drivers` are
    additional driver names for the engine. The name `exec` promises a sandbox that a cluster may
    not have, so only a pool that lists `exec` accepts such tasks.
    """

    engine: str
    partition: str = ""  # the name of the pool if empty
    mhz_per_core: int = 1000
    cluster_config: str = ""
    directory: str = "/tmp"  # noqa: S108  # on each host, for the task directories
    drivers: list[str] = msgspec.field(default_factory=lambda: ["raw_exec"])
    account: str = ""
    qos: str = ""
    max_jobs: int = 1000  # maximum number of non-terminal jobs; 0 means no limit
    nice_per_priority: int = 100  # niceness per point of a job's priority above or below 50
