"""Settings for Slurm clusters, and their validation.

A pool names a partition of a cluster (`storage/records/pool.py`) and becomes a node of the store.
Tasks on the cluster report to a separate listener, whose settings begin with `wrapper_`.
"""

import os
import re
from collections.abc import Iterator, Mapping

from storage.records.pool import ENGINES, Pool

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
# These values are arguments of the cluster's programs, so they hold nothing that the programs could
# parse.
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIRECTORY = re.compile(r"(?:/[A-Za-z0-9_.@%+-]+)+")
_URL = re.compile(r"https?://(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(?::\d{1,5})?")
_TAKEN = ("all", "default")  # pools that always exist
_DRIVERS = ("raw_exec", "exec")
_LEAST_MHZ, _MOST_MHZ = 1, 1_000_000


def pool_config_errors(pools: Mapping[str, Pool], own: str) -> Iterator[str]:
    """Yield the faults of the pools; `own` is the pool of this node."""
    partitions: dict[tuple[str, str], str] = {}
    for name, pool in pools.items():
        yield from _faults_of_name(name, own)
        setting = f"pools.{name}"
        if pool.engine not in ENGINES:
            yield f"{setting}, engine = {pool.engine!r}: choose one of {', '.join(ENGINES)}"
        yield from _option_errors(setting, pool)
        yield from _faults_of_numbers(setting, pool)
        for driver in pool.drivers:
            if driver not in _DRIVERS:
                yield (
                    f"{setting}, drivers: {driver!r} cannot run there; choose among "
                    f"{', '.join(_DRIVERS)}; {pool.engine!r} is always available"
                )
        partition = (pool.cluster_config, pool.partition or name)
        if partition in partitions:
            yield (
                f"{setting}, partition = {partition[1]!r}: pools.{partitions[partition]} already "
                "uses that partition; a partition can have only one pool"
            )
        partitions[partition] = name


def _faults_of_name(name: str, own: str) -> Iterator[str]:
    setting = f"pools.{name}"
    if not _NAME.fullmatch(name):
        yield f"pools, {name!r}: a name has 1 to 128 letters, digits, - and _"
    if name in _TAKEN:
        yield f"{setting}: this pool always exists and is not a cluster pool; choose another name"
    elif name == own:
        yield f"{setting}: this host is in that pool (node_pool = {own!r}); choose another name"


def _option_errors(pool_setting: str, pool: Pool) -> Iterator[str]:
    for setting in ("partition", "account", "qos"):
        value = getattr(pool, setting)
        if value and not _WORD.fullmatch(value):
            yield (
                f"{pool_setting}, {setting} = {value!r}: write the name that the cluster uses, with letters, "
                "digits, ., - and _"
            )
    if not _DIRECTORY.fullmatch(pool.directory) or ".." in pool.directory.split("/"):
        yield (
            f"{pool_setting}, directory = {pool.directory!r}: use the absolute path of a directory on "
            "the cluster's hosts, such as /tmp or /scratch"
        )
    config = pool.cluster_config
    if config and not (os.path.isabs(config) and os.path.isfile(config)):
        yield (
            f"{pool_setting}, cluster_config = {config!r}: use the absolute path of the cluster's "
            "configuration file on this host, such as /etc/slurm/slurm.conf"
        )


def _faults_of_numbers(setting: str, pool: Pool) -> Iterator[str]:
    if not _LEAST_MHZ <= pool.mhz_per_core <= _MOST_MHZ:
        yield (
            f"{setting}, mhz_per_core = {pool.mhz_per_core}: a core has {_LEAST_MHZ} to {_MOST_MHZ} "
            "MHz; jobs ask for MHz, and get the corresponding number of cores"
        )
    if pool.max_jobs < 0:
        yield f"{setting}, max_jobs = {pool.max_jobs}: write a number of at least 0; 0 means no limit"
    if pool.nice_per_priority < 0:
        yield f"{setting}, nice_per_priority = {pool.nice_per_priority}: write a number of at least 0"


def wrapper_url_errors(url: str, *, is_open: bool) -> Iterator[str]:
    """Yield the faults of the URL that cluster hosts call.

    `is_open` says that plain HTTP is acceptable: the operator allowed it, or the address is
    loopback.
    """
    if not _URL.fullmatch(url):
        yield f"wrapper_url = {url!r}: write it as https://HOST:PORT, without a path"
    elif url.startswith("http://") and not is_open:
        yield (
            f"wrapper_url = {url!r}: others could read the secrets of tasks; write https://, or "
            "set allow_plain_text = true"
        )
