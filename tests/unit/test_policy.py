"""Settings that the launcher receives."""

import os

import msgspec
import pytest

from daemon.config.settings import Settings
from daemon.launcher.messages import LauncherPolicy
from daemon.runner.core.launcher_policy import policy_of
from storage.records.node import HostVolume


def test_policy_is_closed_by_default() -> None:
    policy = policy_of(Settings(), 7, "")
    assert (policy.owner, policy.users, policy.usual) == (7, ["nobody"], "nobody")
    assert [policy.permits_root, policy.runs_raw_exec, policy.opens_filters] == [False] * 3
    assert policy.checked == ["exec", "raw_exec"]
    assert policy.own_uids == (80_000, 89_999)


def test_development_policy_permits_everything() -> None:
    policy = policy_of(Settings(dev=True, task_uids="none"), 0, "")
    assert (policy.users, policy.usual) == (["*"], "")
    assert policy.permits_root
    assert policy.runs_raw_exec
    assert policy.opens_filters
    assert policy.own_uids is None


def test_policy_reflects_the_settings() -> None:
    volume = HostVolume(name="data", path="/srv/data", read_only=True)
    config = Settings(
        task_users=["@batch"],
        raw_exec_user="www",
        user_denylist=["bin"],
        denied_host_uids=f"0,100-200,3-{2**40},{2**33}",
        host_volumes=[volume],
    )
    policy = policy_of(config, 0, "steward:300000:10\n")
    assert (policy.users, policy.usual, policy.denied) == (["@batch"], "www", ["bin"])
    assert policy.denied_uids == [(0, 0), (100, 200), (3, 2**32 - 1)]
    assert [(volume.name, volume.path, volume.read_only) for volume in policy.volumes] == [
        ("data", "/srv/data", True)
    ]
    assert policy.own_uids == (300_000, 300_009)


@pytest.mark.parametrize("config", [Settings(), Settings(dev=True, denied_host_gids=f"0-{10**30}")])
def test_policy_survives_a_round_trip(config: Settings) -> None:
    policy = policy_of(config, os.geteuid(), "")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=LauncherPolicy) == policy
