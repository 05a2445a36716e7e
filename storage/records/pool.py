"""A node pool that a cluster runs: how the configuration names it, and what there is to say of it."""

import msgspec

SLURM = "slurm"  # the one engine, and the name of its driver
ENGINES = (SLURM,)


class Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node pool that is a partition of a cluster, as the configuration has it.

    `cluster_config` is the cluster's own configuration file, where that is not the usual one.
    `drivers` are the names by which tasks may ask for the engine, besides its own: `exec` promises
    walls that a cluster may not have, so it has to be named.
    """

    engine: str
    partition: str = ""  # the name of the pool when empty
    mhz_per_core: int = 1000
    cluster_config: str = ""
    directory: str = "/tmp"  # noqa: S108  # of each host: where tasks get a directory of their own
    drivers: list[str] = msgspec.field(default_factory=lambda: ["raw_exec"])
    account: str = ""
    qos: str = ""
    max_jobs: int = 1000  # that have not ended; 0: as many as the cluster takes
    nice_per_priority: int = 100  # a job's priority above or below 50 becomes its niceness
