"""The specifications of Podman's containers: image names, rejected settings and DNS."""

from typing import Any

import pytest

from daemon.runner.core.driver import Attempt, InvalidConfig
from daemon.runner.drivers.limits import ResourceLimits
from daemon.runner.drivers.podman.container_spec import PodmanConfig, check, container, full_name
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


def spec(dns: NetworkDNS | None = None, mode: str = "", **settings: Any) -> dict[str, object]:
    """Return the specification of a task whose group has a network of this mode."""
    attempt = Attempt(
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
    return container(attempt, PodmanConfig(image="i", **settings), ResourceLimits(), "/log")


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
