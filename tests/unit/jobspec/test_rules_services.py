"""Rules of services and their checks, in groups and in tasks."""

from typing import Any

import pytest

from storage.records.base import SECOND
from tests.unit.jobspec.build import errors, group, in_group, in_task, job, nested, task

HTTP = [{"DynamicPorts": [{"Label": "http"}]}]
NO_RFC = (
    "Service name must be valid per RFC 1123 and can contain only alphanumeric characters or "
    "dashes and must be no longer than 63 characters: "
)


def service(provider: str = "nomad", **fields: Any) -> dict[str, Any]:
    return {"Name": "api", "Provider": provider, "PortLabel": "http", **fields}


def check(kind: str = "tcp", **fields: Any) -> dict[str, Any]:
    return {"Name": "c", "Type": kind, "Interval": 10 * SECOND, "Timeout": 2 * SECOND, **fields}


def of_group(*services: dict[str, Any]) -> list[str]:
    return errors(job(group(Services=list(services), Networks=HTTP)))


def of_task(*services: dict[str, Any]) -> list[str]:
    return errors(job(group(task(Services=list(services)), Networks=HTTP)))


def faults(*texts: str) -> list[str]:
    """Return the errors of a group whose services conflict."""
    return in_group(f"Task group service validation failed: {nested(*texts)}") if texts else []


def service_faults(*texts: str, name: str = "api") -> list[str]:
    """Return the errors of a group whose first service is invalid."""
    return faults(f"Service[0] {name} validation failed: {nested(*texts)}") if texts else []


def task_faults(*texts: str) -> list[str]:
    return in_task(nested(*texts)) if texts else []


# ---- one service --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("a", True),
        ("A-1", True),
        ("x" * 63, True),
        ("${NOMAD_JOB_NAME}-api", True),
        ("x" * 64, False),
        ("-a", False),
        ("a-", False),
        ("a.b", False),
        ("a_b", False),
        ("\u00e9", False),
    ],
)
def test_service_name_is_a_valid_dns_label(name: str, *, good: bool) -> None:
    wanted = [] if good else service_faults(f'{NO_RFC}"{name}"', name=name)
    assert of_group(service(Name=name)) == wanted


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"AddressMode": "host"}, []),
        ({"AddressMode": "alloc"}, []),
        ({"Address": "10.0.0.1"}, []),
        (
            {"AddressMode": "host", "Address": "10.0.0.1"},
            ['Service address_mode must be "auto" if address is set'],
        ),
        (
            {"AddressMode": "nope"},
            ['Service address_mode must be "auto", "host", or "driver"; not "nope"'],
        ),
        ({"OnUpdate": "ignore"}, []),
        (
            {"OnUpdate": "nope"},
            [
                'Service on_update must be "require_healthy", "ignore_warnings", or "ignore"; not '
                '"nope"'
            ],
        ),
        ({"Provider": "etcd"}, ['Service provider must be "consul", or "nomad"; not "etcd"']),
        ({"Connect": {}}, ["Service with provider nomad cannot include Connect blocks"]),
        (
            {"Provider": "consul", "Kind": "nope"},
            [
                "Service api kind must be one of consul service kind or empty: api-gateway, "
                "ingress-gateway, mesh-gateway, terminating-gateway"
            ],
        ),
        ({"Provider": "consul", "Kind": "mesh-gateway"}, []),
        (
            {"Provider": "consul", "Identity": {"TTL": 1}},
            ["Service identity must provide at least one target aud value"],
        ),
    ],
)
def test_service_errors_are_found(given: dict[str, Any], texts: list[str]) -> None:
    assert of_group(service(**given)) == service_faults(*texts)


def test_task_uses_only_existing_ports() -> None:
    missing = 'port label "http" referenced by services api does not exist'
    assert errors(job(group(task(Services=[service()])))) == task_faults(missing)
    assert errors(job(group(task(Services=[service()]), Networks=HTTP))) == []


def test_ports_of_the_task_are_accepted() -> None:
    asked = {"Networks": HTTP}
    assert errors(job(group(task(Services=[service()], Resources=asked)))) == []


def test_all_services_without_their_port_are_named() -> None:
    services = [service(PortLabel="x"), service(PortLabel="x", Name="web")]
    text = 'port label "x" referenced by services api, web does not exist'
    assert of_task(*services) == task_faults(text)


# ---- services together --------------------------------------------------------------------------


def test_services_of_a_group_have_one_provider() -> None:
    text = "Multiple service providers used: task group services must use the same provider"
    assert of_group(service(), service("consul", Name="b")) == faults(text)


def test_duplicate_service_is_refused() -> None:
    twice = service(Name="b")
    assert of_group(twice, service(), twice, service(PortLabel="")) == faults(
        "Services are not unique: [group->b:http]"
    )
    assert of_task(twice, twice) == in_group(
        "Task group service validation failed: "
        + nested("Services are not unique: [main->b:http]"),
        "Task main validation failed: " + nested(nested('service "b" is duplicate')),
    )


def test_only_a_task_service_can_use_the_driver_address() -> None:
    assert of_group(service(AddressMode="driver")) == faults(
        'service "api" cannot use address_mode="driver", only services defined in a "task" block '
        "can use this mode"
    )
    assert of_task(service(AddressMode="driver")) == []


@pytest.mark.parametrize("mode", ["alloc", "alloc_ipv6"])
def test_only_a_group_service_can_use_the_allocation_address(mode: str) -> None:
    assert of_task(service(AddressMode=mode)) == task_faults(
        f'service "api" cannot use address_mode="{mode}", only services defined in a "group" block '
        "can use this mode"
    )
    assert of_task(service(Checks=[check(AddressMode=mode)])) == task_faults(
        f'check "api" cannot use address_mode="{mode}", only checks defined in a "group" service '
        "block can use this mode"
    )


def test_only_a_group_service_can_use_the_mesh() -> None:
    assert of_task(service("consul", Connect={"Native": True})) == task_faults(
        'service "api" cannot have "connect" block, only services defined in a "group" block can'
    )


def test_service_of_a_task_names_its_task() -> None:
    theirs = service(TaskName="other", Checks=[check()])
    assert of_task(theirs) == faults(
        'Service api is invalid: may only specify task the service belongs to, got "other"',
        'Check c is invalid: may only specify task the check belongs to, got "other"',
    )


def test_check_of_a_group_names_one_of_its_tasks() -> None:
    assert of_group(service(Checks=[check(TaskName="main")])) == []
    assert of_group(service(Checks=[check(TaskName="nope")])) == faults(
        "Check c invalid: refers to non-existent task nope"
    )
    driven = check(TaskName="main", AddressMode="driver")
    assert of_group(service("consul", Checks=[driven])) == faults(
        'Check "api" invalid: cannot use address_mode="driver", only checks defined in a "task" '
        "service block can use this mode"
    )


def test_script_check_needs_a_task() -> None:
    script = check("script", Command="/bin/true")
    text = "Service [web]->api or Check c must specify task parameter"
    assert of_group(service("consul", Checks=[script])) == in_group(
        f"Task group service check validation failed: {nested(text)}"
    )
    assert of_group(service("consul", Checks=[{**script, "TaskName": "main"}])) == []
    assert of_group(service("consul", TaskName="main", Checks=[script])) == []


# ---- one check ----------------------------------------------------------------------------------

BOTH = [
    (check("tcp"), None),
    (check("HTTP", Path="/"), None),
    (check("http"), "http type must have http path"),
    (check("http", Path="/a b"), None),
    (check("http", Path="/%zz"), "http type must have valid http path"),
    (check("http", Path="/\n"), "http type must have valid http path"),
    (check("http", Path=":8080/x"), "http type must have valid http path"),
    (check("http", Path="a:b/c"), "http type must have relative http path"),
    (check("http", Path="http://x/y"), "http type must have relative http path"),
    (check("http", Path="/x?q=%zz#y"), None),
    (
        check(Interval=0),
        "missing required value interval. Interval cannot be less than 1s",
    ),
    (check(Interval=SECOND), None),
    (check(Interval=SECOND - 1), "interval (999.999999ms) cannot be lower than 1s"),
    (
        check(Timeout=0),
        "missing required value timeout. Timeout cannot be less than 1s",
    ),
    (check(Timeout=1), "timeout (1ns) is lower than required minimum timeout 1s"),
    (check(InitialStatus="warning"), None),
    (
        check(InitialStatus="x"),
        'invalid initial check state (x), must be one of "passing", "warning", "critical" or empty',
    ),
    (check(AddressMode="host"), None),
    (
        check(AddressMode="auto"),
        'invalid address_mode "auto" - auto only valid for services',
    ),
    (
        check(AddressMode="x"),
        'invalid address_mode "x", must be one of alloc, alloc_ipv6, driver, host',
    ),
    (check(OnUpdate="ignore"), None),
    (
        check(OnUpdate="x"),
        'on_update must be "require_healthy", "ignore_warnings", or "ignore"; got "x"',
    ),
    (check(CheckRestart={"Limit": 3}), None),
    (
        check(OnUpdate="ignore", CheckRestart={"Limit": 3}),
        'on_update value "ignore" is not compatible with check_restart',
    ),
    (
        check(OnUpdate="ignore_warnings", CheckRestart={"Limit": 3}),
        'on_update value "ignore_warnings" not supported with check_restart ignore_warnings value '
        '"false"',
    ),
    (
        check(CheckRestart={"Limit": -1, "Grace": -1}),
        nested(
            "limit must be greater than or equal to 0 but found -1",
            "grace period must be greater than or equal to 0 but found -1",
        ),
    ),
]

NATIVE = [
    (check("udp"), 'invalid check type ("udp"), must be one of tcp, http'),
    (check("grpc"), None),
    (check("grpc", Expose=True), "expose may only be set for Consul service checks"),
    (
        check("http", Path="/", Method="PURGE"),
        'method type "PURGE" not supported in Nomad http check, must be one of CONNECT, DELETE, '
        "GET, HEAD, OPTIONS, PATCH, POST, PUT, TRACE",
    ),
    (check("http", Path="/", Method="HEAD"), None),
    (check("http", Path="/", Expose=True), "expose may only be set for Consul service checks"),
    (
        check(OnUpdate="ignore_warnings"),
        "on_update may only be set to ignore_warnings for Consul service checks",
    ),
    (
        check(CheckRestart={"IgnoreWarnings": True}),
        "ignore_warnings on check_restart only supported for Consul service checks",
    ),
    (
        check(AddressMode="driver"),
        "address_mode = driver may only be set for Consul service checks",
    ),
    (
        check(FailuresBeforeWarning=1),
        "failures_before_warning may only be set for Consul service checks",
    ),
    (check(TLSServerName="x", SuccessBeforePassing=2, FailuresBeforeCritical=3), None),
    (check("script", Command="/bin/true", TaskName="main"), None),
    (check("script", TaskName="main"), "script type must have a valid script path"),
]

CONSUL = [
    (check("grpc", Expose=True), None),
    (check("udp"), 'invalid check type ("udp"), must be one of grpc, tcp, http, script'),
    (check("script", TaskName="main"), "script type must have a valid script path"),
    (check("tcp", Expose=True), "expose may only be set on HTTP or gRPC checks"),
    (check(SuccessBeforePassing=1, FailuresBeforeCritical=2), None),
    (check(FailuresBeforeWarning=-1), None),  # means 0
    (
        check("script", Command="x", TaskName="main", FailuresBeforeWarning=1),
        'failures_before_warning not supported for check of type "script"',
    ),
    (check(Notes="x" * 255), None),
    (check(Notes="x" * 256), "notes must not be longer than 255 characters"),
    (
        check(OnUpdate="ignore_warnings", CheckRestart={"Limit": 1, "IgnoreWarnings": True}),
        None,
    ),
]


@pytest.mark.parametrize(("given", "fault"), [*BOTH, *NATIVE])
def test_check_of_the_nomad_provider_is_validated(given: dict[str, Any], fault: str | None) -> None:
    assert of_group(service(Checks=[given])) == service_faults(*filter(None, [fault]))


@pytest.mark.parametrize(("given", "fault"), [*BOTH, *CONSUL])
def test_check_of_the_consul_provider_is_validated(
    given: dict[str, Any], fault: str | None
) -> None:
    wanted = [f"Check c invalid: {fault}"] if fault else []
    assert of_group(service("consul", Checks=[given])) == service_faults(*wanted)


@pytest.mark.parametrize("provider", ["nomad", "consul"])
def test_tcp_and_http_checks_need_a_port(provider: str) -> None:
    text = 'Check c invalid: check requires a port but neither check nor service "api" have a port'
    portless = service(provider, PortLabel="", Checks=[check()])
    assert of_group(portless) == service_faults(text)
    own_port = service(provider, PortLabel="", Checks=[check(PortLabel="http")])
    assert of_group(own_port) == []


# ---- the checks of a task -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (check(PortLabel="http"), []),
        (
            check(PortLabel="x"),
            ['port label "x" referenced by services api does not exist'],
        ),
        (
            check(PortLabel="8080"),
            [
                'check "c" cannot use a numeric port 8080 without setting address_mode="driver"',
            ],
        ),
        (check(PortLabel="8080", AddressMode="driver"), []),
        (
            check(PortLabel="0", AddressMode="driver"),
            ['check "c" has invalid numeric port 0'],
        ),
    ],
)
def test_a_check_of_a_task_names_a_port(given: dict[str, Any], texts: list[str]) -> None:
    assert of_task(service("consul", Checks=[given])) == task_faults(*texts)


def test_numeric_port_needs_the_driver_address_mode() -> None:
    assert of_task(service("consul", PortLabel="8080", AddressMode="driver")) == []
    assert of_task(service("consul", PortLabel="8080")) == task_faults(
        'port label "8080" referenced by services api does not exist'
    )


def test_checks_of_a_service_have_different_names() -> None:
    twice = [check(), check()]
    assert of_task(service(Checks=twice)) == task_faults('check "c" is duplicate')


def test_check_without_any_port_has_two_errors() -> None:
    portless = service(PortLabel="", Checks=[check()])
    inner = 'Check c invalid: check requires a port but neither check nor service "api" have a port'
    assert of_task(portless) == task_faults(
        f'service[0] "api" validation failed: {nested(inner)}', 'check "c" is missing a port'
    )


# ---- port numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["0", "65536", "99999", "9" * 5000])
def test_port_number_out_of_range_is_refused(number: str) -> None:
    (fault,) = of_group(service(PortLabel=number))
    assert 'service "api" has the invalid port' in fault
    assert "a port number is from 1 to 65535" in fault


def test_port_number_of_a_check_out_of_range_is_refused() -> None:
    (fault,) = of_group(service(Checks=[check(PortLabel="99999")]))
    assert 'check "c" of service "api" has the invalid port 99999' in fault


def test_port_number_of_a_task_service_out_of_range_is_refused() -> None:
    (fault,) = of_task(service(PortLabel="99999", AddressMode="driver"))
    assert 'service "api" has the invalid port 99999' in fault


@pytest.mark.parametrize("number", ["1", "65535"])
def test_port_number_in_range_is_accepted(number: str) -> None:
    assert of_group(service(PortLabel=number)) == []


def test_label_of_digits_is_no_port_number() -> None:
    networks = [{"DynamicPorts": [{"Label": "99999"}]}]
    assert errors(job(group(Services=[service(PortLabel="99999")], Networks=networks))) == []
