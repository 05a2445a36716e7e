"""Pools of clusters in the configuration, and the address that their tasks report to."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from daemon.config.settings import Settings
from storage.errors import Invalid
from storage.records.pool import Pool
from tests.unit.test_config import EVERYWHERE, loaded

POOL = '[pools.hpc]\nengine = "slurm"\n'


def test_pool_needs_only_its_engine(tmp_path: Path) -> None:
    assert loaded(tmp_path, POOL).pools == {"hpc": Pool(engine="slurm")}


def test_every_pool_setting_is_accepted(tmp_path: Path) -> None:
    (config_of_cluster := tmp_path / "slurm.conf").touch()
    text = f"""{POOL}partition = "main"
        mhz_per_core = 2500
        cluster_config = "{config_of_cluster}"
        directory = "/scratch/steward"
        drivers = ["raw_exec", "exec"]
        account = "physics"
        qos = "long"
        max_jobs = 0
        nice_per_priority = 10
        [pools.short]
        engine = "slurm"
    """
    config = loaded(tmp_path, text)
    assert list(config.pools) == ["hpc", "short"]
    assert config.pools["hpc"].mhz_per_core == 2500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[pools.hpc]\nengine = "pbs"', ["pools.hpc", "engine = 'pbs'", "slurm"]),
        ("[pools.hpc]\n", ["pools", "engine"]),
        (f"{POOL}cores = 4", ["pools", "cores"]),
        (f'{POOL}mhz_per_core = "fast"', ["pools", "mhz_per_core", "int"]),
        (f"{POOL}mhz_per_core = 0", ["pools.hpc", "mhz_per_core = 0", "1 to"]),
        (f"{POOL}max_jobs = -1", ["pools.hpc", "max_jobs = -1", "of at least 0"]),
        (f"{POOL}nice_per_priority = -1", ["nice_per_priority = -1", "of at least 0"]),
        (f'{POOL}partition = "a,b"', ["pools.hpc", "partition = 'a,b'"]),
        (f'{POOL}partition = "--uid=0"', ["partition = '--uid=0'"]),
        (f'{POOL}account = "a b"', ["account = 'a b'"]),
        (f'{POOL}qos = "-x"', ["qos = '-x'"]),
        (f'{POOL}directory = "tmp"', ["directory = 'tmp'", "absolute path"]),
        (f'{POOL}directory = "/tmp/../etc"', ["directory = '/tmp/../etc'"]),
        (f'{POOL}directory = "/tmp; id"', ["directory = '/tmp; id'"]),
        (f'{POOL}cluster_config = "/nowhere/slurm.conf"', ["cluster_config", "slurm.conf"]),
        (f'{POOL}drivers = ["podman"]', ["'podman' cannot run there", "raw_exec, exec"]),
        ('[pools."a b"]\nengine = "slurm"', ["'a b'", "letters, digits"]),
        ('[pools.all]\nengine = "slurm"', ["pools.all", "always exists"]),
        ('[pools.default]\nengine = "slurm"', ["pools.default", "always exists"]),
        ('node_pool = "hpc"\n' + POOL, ["pools.hpc", "this host is in that pool"]),
        (POOL + POOL, ["not valid TOML"]),
        (
            f'{POOL}[pools.two]\nengine = "slurm"\npartition = "hpc"',
            ["pools.two", "pools.hpc already uses that partition"],
        ),
    ],
)
def test_pool_error_names_pool_and_value(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        loaded(tmp_path, text)
    assert [word for word in words if word not in str(caught.value)] == []


def test_pool_cannot_be_configured_in_the_environment(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"pools = 'hpc' \(the environment\)"):
        loaded(tmp_path, "", {"STEWARD_POOLS": "hpc"})


# ---- address for the reports of tasks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"wrapper_bind": EVERYWHERE}, "wrapper_bind = .* or allow_plain_text = true"),
        ({"wrapper_tls_cert": "/c.pem"}, "wrapper_tls_cert and wrapper_tls_key belong together"),
        ({"wrapper_tls_key": "/k.pem"}, "wrapper_tls_cert and wrapper_tls_key belong together"),
        ({"wrapper_url": "steward.lan:4690"}, "wrapper_url = 'steward.lan:4690'"),
        ({"wrapper_url": "https://steward.lan/x"}, "without a path"),
        ({"wrapper_port": "70000"}, "wrapper_port = '70000'"),
        (
            {
                "wrapper_bind": EVERYWHERE,
                "wrapper_tls_cert": "/c.pem",
                "wrapper_tls_key": "/k.pem",
                "wrapper_url": "http://steward.lan:4690",
            },
            "wrapper_url = .* write https://",
        ),
    ],
)
def test_unencrypted_or_unreachable_wrapper_listener_is_refused(
    tmp_path: Path, flags: Mapping[str, object], words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        loaded(tmp_path, POOL, **flags)


def test_without_pools_there_is_no_wrapper_listener(tmp_path: Path) -> None:
    assert loaded(tmp_path, wrapper_bind=EVERYWHERE).pools == {}


def test_wrapper_listener_has_the_address_of_the_daemon_by_default(tmp_path: Path) -> None:
    pair = {"tls_cert": "/c.pem", "tls_key": "/k.pem"}
    assert described(loaded(tmp_path, POOL)) == ("127.0.0.1", Path(), Path())
    same = loaded(tmp_path, POOL, bind=EVERYWHERE, **pair)
    assert described(same) == (EVERYWHERE, Path("/c.pem"), Path("/k.pem"))
    own = {"wrapper_tls_cert": "/w.pem", "wrapper_tls_key": "/wk.pem"}
    other = loaded(tmp_path, POOL, wrapper_bind=EVERYWHERE, **pair, **own)
    assert described(other) == (EVERYWHERE, Path("/w.pem"), Path("/wk.pem"))


def described(config: Settings) -> tuple[str, Path, Path]:
    return (config.wrapper_host, config.of_wrappers.tls_cert, config.of_wrappers.tls_key)
