"""Podman's containers: image names, rejected settings, DNS and usage."""

from typing import Any

import pytest

from daemon.runner.core.driver import Attempt, InvalidConfig
from daemon.runner.core.resource_usage import UsageReading
from daemon.runner.drivers.limits import ResourceLimits
from daemon.runner.drivers.podman.api import ContainerStats
from daemon.runner.drivers.podman.container_spec import PodmanConfig, check, container, full_name
from daemon.runner.drivers.podman.driver import ContainerTask
from storage.records.task import NetworkDNS


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("redis:7", "docker.io/library/redis:7"),
        ("a/b", "docker.io/a/b"),
        ("a/b:1", "docker.io/a/b:1"),
        ("docker://redis", "docker.io/library/redis"),
        ("localhost/x", "localhost/x"),
        ("r.io/a", "r.io/a"),
        ("registry:5000/a", "registry:5000/a"),
    ],
)
def test_image_without_a_registry_is_from_docker_hub(image: str, name: str) -> None:
    assert full_name(image) == name


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"privileged": True}, "privileged: not supported"),
        ({"network_mode": "container:x"}, "network_mode"),
        ({"cap_add": ["CAP_SYS_ADMIN", "kill"]}, r"cap_add \['SYS_ADMIN'\]: only AUDIT_WRITE, "),
        ({"volumes": ["/a:/b"]}, "volumes: host paths need podman_volumes = true"),
        ({"image_pull_timeout": "x"}, "image_pull_timeout: "),
        ({"shm_size": "x"}, "shm_size: 'x' is not a size such as 64m"),
    ],
)
def test_setting_is_refused(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^{fault}"):
        check(PodmanConfig(image="i", **settings), volumes=False)


def test_permitted_volumes_and_capabilities_are_accepted() -> None:
    check(PodmanConfig(image="i", volumes=["/a:/b"], cap_add=["kill"]), volumes=True)
    check(PodmanConfig(image="i"), volumes=False)


def attempt(dns: NetworkDNS | None = None, mode: str = "") -> Attempt:
    """Return an attempt whose group has a network of this mode."""
    return Attempt(
        alloc_id="a1",
        task="main",
        number=0,
        directory="/d",
        config={},
        env={},
        logs={},
        beside="/d/output",
        dns=dns,
        network_mode=mode,
    )


def spec(dns: NetworkDNS | None = None, mode: str = "", **settings: Any) -> dict[str, object]:
    """Return the specification of the attempt's container."""
    configured = PodmanConfig(image="i", **settings)
    return container(attempt(dns, mode), configured, ResourceLimits(), "/log")


DNS = NetworkDNS(servers=["192.0.2.1"], searches=["lan"], options=["ndots:2"])
OF_GROUP = {"dns_server": ["192.0.2.1"], "dns_search": ["lan"], "dns_option": ["ndots:2"]}


@pytest.mark.parametrize(
    ("dns", "settings", "names"),
    [
        (None, {}, {}),
        (DNS, {}, OF_GROUP),
        (DNS, {"network_mode": "none"}, OF_GROUP),
        (None, {"network_mode": "none", "dns_options": ["x"]}, {}),
        (None, {"network_mode": "host", "dns_options": ["x"]}, {}),
        (None, {"dns_options": ["x"]}, {"dns_option": ["x"]}),
        (DNS, {"dns_options": ["x"]}, {**OF_GROUP, "dns_option": ["x"]}),
        (DNS, {"dns_servers": ["192.0.2.2"]}, {**OF_GROUP, "dns_server": ["192.0.2.2"]}),
        (DNS, {"dns_search_domains": ["x"]}, {**OF_GROUP, "dns_search": ["x"]}),
    ],
)
def test_dns_settings_of_the_task_replace_those_of_its_group(
    dns: NetworkDNS | None, settings: dict[str, Any], names: dict[str, list[str]]
) -> None:
    found = spec(dns, **settings)
    assert {name: value for name, value in found.items() if name.startswith("dns_")} == names


@pytest.mark.parametrize(
    ("mode", "own", "network"),
    [
        ("none", "", "none"),
        ("host", "", "bridge"),
        ("", "host", "host"),
        ("bridge", "host", "host"),
    ],
)
def test_network_of_the_task_precedes_that_of_its_group(mode: str, own: str, network: str) -> None:
    assert spec(mode=mode, network_mode=own)["netns"] == {"nsmode": network}


def test_container_does_not_join_the_bridge_of_its_group() -> None:
    with pytest.raises(InvalidConfig, match="a container cannot join the network of a group"):
        spec(mode="bridge")


class StatsClient:
    """A client of Podman that knows the usage of one container, if at all."""

    def __init__(self, stats: ContainerStats | None) -> None:
        self.found, self.names = stats, list[str]()

    async def stats(self, name: str) -> ContainerStats | None:
        self.names.append(name)
        return self.found


async def test_usage_of_a_container_separates_user_and_system_time() -> None:
    client: Any = StatsClient(ContainerStats(cpu=7000, system=2000, memory=4096))
    found = await ContainerTask(client, attempt()).usage()
    assert found.account is not None
    assert (found.account.user, found.account.system) == (5000, 2000)
    assert found.account.memory.usage == 4096
    assert client.names == ["steward-a1-main-0"]


async def test_removed_container_has_no_usage() -> None:
    client: Any = StatsClient(None)
    assert await ContainerTask(client, attempt()).usage() == UsageReading()
