"""Rules of a group: its tasks together, its policies, volumes, networks and scaling."""

from typing import Any

import pytest

from daemon.jobspec.validate import validate
from storage.records.base import HOUR, MINUTE, SECOND
from tests.unit.jobspec.build import complete, errors, group, in_group, job, nested, task

NO_RESCHEDULE = "System or sysbatch jobs should not have a reschedule policy"


def wrong(*texts: str) -> list[str]:
    return in_group(*texts) if texts else []


def in_group_of(kind: str, **fields: Any) -> list[str]:
    return errors(job(group(**fields), Type=kind))


# ---- the group and its tasks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (group(Name="a\0b"), ["Task group name contains null character"]),
        (group(Count=-1), ["Task group count can't be negative"]),
        (group(Count=0), []),
        (group(Tasks=[]), ["Missing tasks for task group"]),
        (
            group(task("a", Leader=True), task("b", Leader=True)),
            ["Only one task may be marked as leader"],
        ),
        (group(task("a", Leader=True), task("b")), []),
        (
            group(task("a"), task("b"), task("a")),
            ["Task 3 redefines 'a' from task 1"],
        ),
        (group(task(Lifecycle={"Hook": "prestart"})), []),
        (group(task("a", Lifecycle={"Hook": "prestart"}), task("b")), []),
    ],
)
def test_group_errors_are_found(given: dict[str, Any], texts: list[str]) -> None:
    name = given["Name"]
    assert errors(job(given)) == (in_group(*texts, name=name) if texts else [])


def test_task_without_a_name_is_named_by_its_position() -> None:
    assert errors(job(group(task(), task("")))) == wrong(
        "Task 2 missing name",
        f"Task  validation failed: {nested('Missing task name')}",
    )


@pytest.mark.parametrize(
    ("kind", "given", "texts"),
    [
        ("batch", HOUR, []),
        ("sysbatch", HOUR, []),
        ("batch", 0, ["MaxRunDuration must be greater than zero"]),
        ("service", HOUR, ['Job type "service" does not allow max_run_duration']),
        (
            "system",
            -1,
            [
                "MaxRunDuration must be greater than zero",
                'Job type "system" does not allow max_run_duration',
            ],
        ),
    ],
)
def test_only_batch_jobs_can_have_a_run_limit(kind: str, given: int, texts: list[str]) -> None:
    assert in_group_of(kind, MaxRunDuration=given) == wrong(*texts)


@pytest.mark.parametrize(
    ("kind", "given", "texts"),
    [
        ("batch", {"Update": {}}, ['Job type "batch" does not allow update block']),
        ("sysbatch", {"Update": {}}, ['Job type "sysbatch" does not allow update block']),
        ("system", {"Update": {}}, []),
        ("sysbatch", {"ReschedulePolicy": {"Attempts": 1}}, [NO_RESCHEDULE]),
        ("system", {"ReschedulePolicy": {"Attempts": 1}}, [NO_RESCHEDULE]),
        ("batch", {"Migrate": {}}, ['Job type "batch" does not allow migrate block']),
        ("system", {"Migrate": {}}, ['Job type "system" does not allow migrate block']),
        ("service", {"Migrate": {}}, []),
    ],
)
def test_policies_must_fit_the_job_type(kind: str, given: dict[str, Any], texts: list[str]) -> None:
    assert in_group_of(kind, **given) == wrong(*texts)


def test_disk_size_is_positive() -> None:
    small = errors(job(group(EphemeralDisk={"SizeMB": 9})))
    assert "minimum DiskMB value is 10; got 9" in small[0]
    assert errors(job(group(EphemeralDisk={"SizeMB": 101}))) == []


# ---- restart ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"Mode": "delay"}, []),
        ({"Mode": "nope"}, ['Unsupported restart mode: "nope"']),
        (
            {"Mode": "delay", "Attempts": 0},
            ['Restart policy "delay" with 0 attempts is ambiguous'],
        ),
        ({"Mode": "fail", "Attempts": 0}, []),
        ({"Interval": 5 * SECOND, "Delay": SECOND}, []),
        (
            {"Interval": 5 * SECOND - 1, "Delay": SECOND},
            ["Interval can not be less than 5s (got 4.999999999s)"],
        ),
        (
            {"Attempts": 10, "Interval": MINUTE, "Delay": 7 * SECOND},
            [
                "Nomad can't restart the TaskGroup 10 times in an interval of 1m0s with a delay "
                "of 7s"
            ],
        ),
        ({"Attempts": 10, "Interval": MINUTE, "Delay": 6 * SECOND}, []),
    ],
)
def test_restart_attempts_must_fit_into_their_interval(
    given: dict[str, Any], texts: list[str]
) -> None:
    assert errors(job(group(RestartPolicy=given))) == wrong(*texts)


# ---- reschedule ---------------------------------------------------------------------------------


def limited(
    attempts: int, interval: int, delay: int, function: str, most: int = HOUR
) -> dict[str, Any]:
    return {
        "Attempts": attempts,
        "Interval": interval,
        "Delay": delay,
        "DelayFunction": function,
        "MaxDelay": most,
        "Unlimited": False,
    }


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({}, []),
        ({"Attempts": 0, "Unlimited": False, "Delay": 1}, []),  # rescheduling is off
        (
            {"Delay": SECOND},
            ["Delay cannot be less than 5s (got 1s)"],
        ),
        (
            {"DelayFunction": "linear"},
            [
                'Invalid delay function "linear", must be one of ["constant" "exponential" '
                '"fibonacci"]'
            ],
        ),
        (
            {"MaxDelay": SECOND},
            [
                "Max Delay cannot be less than 5s (got 30s)",
                "Max Delay cannot be less than Delay 30s (got 1s)",
            ],
        ),
        ({"MaxDelay": SECOND, "DelayFunction": "constant"}, []),
        (
            {"Attempts": 2, "Interval": MINUTE},
            [
                "Reschedule Policy with Attempts = 2, Interval = 1m0s, and Unlimited = true is "
                "ambiguous",
                "If Attempts >0, Unlimited cannot also be set to true",
            ],
        ),
        (
            {**limited(1, 0, 5 * SECOND, "constant")},
            [
                "Interval must be a non zero value if Attempts > 0",
                "Interval cannot be less than 15s (got 0s)",
                "Nomad can only make 0 attempts in 0s with initial delay 5s and delay function "
                '"constant"',
                "Set the interval to at least 5s to accommodate 1 attempts",
            ],
        ),
        (limited(3, 15 * SECOND, 5 * SECOND, "constant"), []),
        (
            limited(4, 15 * SECOND, 5 * SECOND, "constant"),
            [
                "Nomad can only make 3 attempts in 15s with initial delay 5s and delay function "
                '"constant"',
                "Set the interval to at least 20s to accommodate 4 attempts",
            ],
        ),
        (limited(3, MINUTE, 5 * SECOND, "exponential"), []),
        (
            limited(5, MINUTE, 5 * SECOND, "exponential", 40 * SECOND),
            [
                "Nomad can only make 4 attempts in 1m0s with initial delay 5s, delay function "
                '"exponential", and delay ceiling 40s',
                "Set the interval to at least 1m20s to accommodate 5 attempts",
            ],
        ),
        (limited(3, MINUTE, 5 * SECOND, "fibonacci"), []),
        (
            limited(6, 20 * SECOND, 5 * SECOND, "fibonacci", 25 * SECOND),
            [
                "Nomad can only make 4 attempts in 20s with initial delay 5s, delay function "
                '"fibonacci", and delay ceiling 25s',
                "Set the interval to at least 25s to accommodate 6 attempts",
            ],
        ),
    ],
)
def test_reschedule_attempts_must_fit_into_their_interval(
    given: dict[str, Any], texts: list[str]
) -> None:
    assert errors(job(group(ReschedulePolicy=given))) == wrong(*texts)


@pytest.mark.parametrize("function", ["constant", "exponential", "fibonacci"])
def test_any_number_of_attempts_is_validated_quickly(function: str) -> None:
    found = errors(job(group(ReschedulePolicy=limited(10**15, HOUR, 5 * SECOND, function))))
    assert "Nomad can only make" in found[0]


# ---- update, migrate, disconnect ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"HealthCheck": "manual"}, []),
        ({"HealthCheck": "nope"}, ['Invalid health check given: "nope"']),
        ({"MaxParallel": -1}, ["Max parallel can not be less than zero: -1 < 0"]),
        ({"Canary": -1}, ["Canary count can not be less than zero: -1 < 0"]),
        ({"AutoPromote": True}, ["Auto Promote requires a Canary count greater than zero"]),
        ({"AutoPromote": True, "Canary": 1}, []),
        ({"MinHealthyTime": -SECOND}, ["Minimum healthy time may not be less than zero: -1s"]),
        (
            {"HealthyDeadline": 0},
            [
                "Healthy deadline must be greater than zero: 0s",
                "Minimum healthy time must be less than healthy deadline: 10s > 0s",
            ],
        ),
        (
            {"ProgressDeadline": -SECOND},
            [
                "Progress deadline must be zero or greater: -1s",
                "Healthy deadline must be less than progress deadline: 5m0s > -1s",
            ],
        ),
        ({"ProgressDeadline": 0}, []),
        (
            {"HealthyDeadline": 10 * MINUTE},
            ["Healthy deadline must be less than progress deadline: 10m0s > 10m0s"],
        ),
        ({"Stagger": 0}, ["Stagger must be greater than zero: 0s"]),
    ],
)
def test_update_block_must_be_possible(given: dict[str, Any], texts: list[str]) -> None:
    assert errors(job(group(Update=given))) == wrong(*texts)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"MaxParallel": -1}, ["MaxParallel must be >= 0 but found -1"]),
        (
            {"HealthCheck": "manual"},
            ['Invalid HealthCheck: "manual", must be one of checks, task_states'],
        ),
        ({"HealthCheck": ""}, ["Missing HealthCheck"]),
        ({"HealthCheck": "", "MaxParallel": 0}, []),
        ({"MinHealthyTime": -SECOND}, ["MinHealthyTime is -1s and must be >= 0"]),
        (
            {"HealthyDeadline": -SECOND},
            [
                "HealthyDeadline is -1s and must be >= 0",
                "MinHealthyTime must be less than HealthyDeadline",
            ],
        ),
    ],
)
def test_migrate_block_must_be_possible(given: dict[str, Any], texts: list[str]) -> None:
    assert errors(job(group(Migrate=given))) == wrong(*texts)


@pytest.mark.parametrize(
    ("kind", "given", "texts"),
    [
        ("service", {"LostAfter": HOUR}, []),
        ("batch", {"StopOnClientAfter": 0}, []),
        ("service", {"StopOnClientAfter": -1}, ["stop_after cannot be a negative duration"]),
        (
            "system",
            {"StopOnClientAfter": 1},
            ["stop_after can only be used with service or batch job types"],
        ),
        ("service", {"LostAfter": -1}, ["lost_after cannot be a negative duration"]),
        (
            "service",
            {"LostAfter": 1, "StopOnClientAfter": 0},
            ["Disconnect cannot be configured with both lost_after and stop_after"],
        ),
        ("service", {"Reconcile": "longest_running"}, []),
        (
            "service",
            {"Reconcile": "nope"},
            [
                "reconcile option is invalid: nope, must be one of best_score, keep_original, "
                "keep_replacement, longest_running"
            ],
        ),
    ],
)
def test_disconnect_options_are_exclusive(
    kind: str, given: dict[str, Any], texts: list[str]
) -> None:
    assert in_group_of(kind, Disconnect=given) == wrong(*texts)


# ---- scaling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "given", "texts"),
    [
        (1, {"Min": 1, "Max": 1}, []),
        (2, {"Min": 1, "Max": 1}, ["task group count must not be greater than maximum count"]),
        (0, {"Min": 1, "Max": 1}, ["task group count must not be less than minimum count"]),
        (1, {"Max": 2, "Type": "vertical"}, ['scaling policy type "vertical" is not valid']),
        (
            1,
            {"Min": 3, "Max": 2},
            [
                "maximum count must not be less than minimum count",
                "task group count must not be less than minimum count",
            ],
        ),
        (
            1,
            {"Min": -1, "Max": -1},
            [
                "maximum count must be specified and non-negative",
                "minimum count must be specified and non-negative",
                "task group count must not be greater than maximum count",
            ],
        ),
    ],
)
def test_count_has_limits(count: int, given: dict[str, Any], texts: list[str]) -> None:
    found = errors(job(group(Count=count, Scaling=given)))
    whole = [
        f"Scaling policy invalid: {text}"
        + (" in scaling policy" if text.startswith("task group") else "")
        for text in texts
    ]
    wanted = f"Task group scaling policy validation failed: {nested(*whole)}"
    assert found == (in_group(wanted) if texts else [])


# ---- volumes ------------------------------------------------------------------------------------


def volume(**fields: Any) -> dict[str, Any]:
    return {"Name": "v", "Type": "host", "Source": "s", **fields}


def by_plugin(mode: str = "single-node-writer", **fields: Any) -> dict[str, Any]:
    given = {"Type": "csi", "AccessMode": mode, "AttachmentMode": "file-system", **fields}
    return volume(**given)


@pytest.mark.parametrize(
    ("given", "around", "texts"),
    [
        (volume(), {}, []),
        (volume(Source=""), {}, ["volume has an empty source"]),
        (volume(MountOptions={}), {}, ["host volumes cannot have mount options"]),
        (
            volume(AccessMode="multi-node-multi-writer"),
            {},
            [
                "host volumes cannot be mounted with multi-node-multi-writer access mode, only with "
                "one of single-node-multi-writer, single-node-reader-only, "
                "single-node-single-writer, single-node-writer"
            ],
        ),
        (
            volume(AccessMode="single-node-reader-only"),
            {},
            ["single-node-reader-only volumes must be read-only"],
        ),
        (volume(AccessMode="single-node-reader-only", ReadOnly=True), {}, []),
        (
            volume(PerAlloc=True),
            {"Update": {"Canary": 1}},
            ["volume cannot be per_alloc when canaries are in use"],
        ),
        (
            volume(PerAlloc=True, Sticky=True),
            {},
            ["volume cannot be per_alloc and sticky at the same time"],
        ),
        (by_plugin(), {}, []),
        (by_plugin(AttachmentMode=""), {}, ["CSI volumes must have an attachment mode"]),
        (by_plugin(""), {}, ["CSI volumes must have an access mode"]),
        (
            by_plugin(AttachmentMode="block-device", MountOptions={}),
            {},
            ["block devices cannot have mount options"],
        ),
        (
            by_plugin("multi-node-reader-only"),
            {},
            ["multi-node-reader-only volumes must be read-only"],
        ),
        (
            by_plugin(),
            {"Count": 2},
            ["volume with single-node-writer access mode allows only one reader or writer"],
        ),
        (by_plugin(PerAlloc=True), {"Count": 2}, []),
        (
            by_plugin("single-node-reader-only", ReadOnly=True),
            {"Count": 2},
            ["volume with single-node-reader-only access mode allows only one reader"],
        ),
        (
            by_plugin("multi-node-single-writer"),
            {"Count": 2},
            ["volume with multi-node-single-writer access mode allows only one writer"],
        ),
        (by_plugin("multi-node-single-writer", ReadOnly=True), {"Count": 2}, []),
        (by_plugin("multi-node-multi-writer"), {"Count": 2}, []),
    ],
)
def test_volumes_must_be_valid(
    given: dict[str, Any], around: dict[str, Any], texts: list[str]
) -> None:
    wanted = f"Task group volume validation for v failed: {nested(*texts)}"
    found = errors(job(group(Volumes={"v": given}, **around)))
    assert found == (in_group(wanted) if texts else [])


@pytest.mark.parametrize("kind", ["system", "sysbatch"])
def test_system_job_has_no_per_alloc_volume(kind: str) -> None:
    text = "volume cannot be per_alloc for system or sysbatch jobs"
    assert in_group_of(kind, Volumes={"v": volume(PerAlloc=True)}) == in_group(
        f"Task group volume validation for v failed: {nested(text)}"
    )


def test_volumes_are_validated_in_order_of_their_names() -> None:
    (found,) = errors(job(group(Volumes={name: volume(Source="") for name in "cab"})))
    places = [found.index(f"validation for {name} ") for name in "abc"]
    assert places == sorted(places)


# ---- networks -----------------------------------------------------------------------------------


def port(label: str = "http", **fields: Any) -> dict[str, Any]:
    return {"Label": label, **fields}


@pytest.mark.parametrize(
    ("networks", "texts"),
    [
        ([{"DynamicPorts": [port(), port("admin", To=8080)]}], []),
        (
            [{"DynamicPorts": [port(), port()]}],
            ["Port label http already in use by taskgroup network"],
        ),
        (
            [{"DynamicPorts": [port()]}, {"ReservedPorts": [port(Value=80)]}],
            ["Port label http already in use by taskgroup network"],
        ),
        (
            [{"ReservedPorts": [port(Value=80), port("b", Value=80)]}],
            ["Static port 80 already reserved by taskgroup network:http"],
        ),
        (
            [{"ReservedPorts": [port(Value=80), port("b", Value=80, HostNetwork="lan")]}],
            [],
        ),
        (
            [{"ReservedPorts": [port(Value=80), port("b", Value=80, HostNetwork="default")]}],
            ["Static port 80 already reserved by taskgroup network:http"],
        ),
        (
            [{"ReservedPorts": [port(Value=80), port("b", Value=80, IgnoreCollision=True)]}],
            [],
        ),
        (
            [{"ReservedPorts": [port(Value=-1)]}],
            ["Port http (-1) must be from 1 to 65535"],
        ),
        (
            [{"ReservedPorts": [port(Value=65536)]}],
            ["Port http (65536) cannot be greater than 65535"],
        ),
        (
            [{"DynamicPorts": [port(To=65536)]}],
            ['Port "http" cannot be mapped to a port (65536) greater than 65535'],
        ),
        (
            [{"DynamicPorts": [port(To=-2)]}],
            ['Port "http" cannot be mapped to negative value -2'],
        ),
        ([{"DynamicPorts": [port(To=-1)]}], []),
        (
            [{"Mode": "bridge", "DynamicPorts": [port(IgnoreCollision=True)]}],
            ['Port "http" collision may not be ignored on non-host network mode "bridge"'],
        ),
        ([{"Mode": "host", "DynamicPorts": [port(IgnoreCollision=True)]}], []),
        ([{"CNI": {"Args": {"A": "1"}}}], []),
        (
            [{"CNI": {"Args": {"A;": "1;"}}}],
            [
                "invalid ';' character in CNI arg key \"A;\"",
                "invalid ';' character in CNI arg value \"1;\"",
            ],
        ),
        (
            [{"CNI": {"Args": {"A": "1"}}}, {"CNI": {"Args": {"A": "2"}}}],
            ['duplicate CNI arg "A"'],
        ),
        ([{"Hostname": "www.example.com."}], []),
        ([{"Hostname": "${NOMAD_ALLOC_ID}..x"}], []),
        ([{"Hostname": "a..b"}], ["Hostname is not a valid DNS name"]),
        ([{"Hostname": "."}], []),
        ([{"DNS": {"Servers": ["10.0.0.1", "${meta.dns}"], "Options": ["ndots:2"]}}], []),
        (
            [{"DNS": {"Servers": ["1.1.1.1\n* * * * * root id"], "Searches": ["a b"]}}],
            [
                "DNS server '1.1.1.1\\n* * * * * root id' is not valid: use an IP address",
                "DNS search 'a b' is not valid: use a domain name",
            ],
        ),
        ([{"Hostname": "x" * 64}], ["Hostname is not a valid DNS name"]),
        ([{"Hostname": ".".join(["x" * 63] * 4)}], []),
        ([{"Hostname": ".".join(["x" * 63] * 4 + ["y"])}], ["Hostname is not a valid DNS name"]),
    ],
)
def test_ports_and_names_must_be_consistent(
    networks: list[dict[str, Any]], texts: list[str]
) -> None:
    found = errors(job(group(Networks=networks)))
    wanted = f"Task group network validation failed: {nested(*texts)}"
    assert found == (in_group(wanted) if texts else [])


def test_task_ports_must_not_collide_with_group_ports() -> None:
    asked = {"Networks": [{"ReservedPorts": [port(Value=80), port("b", Value=81)]}]}
    networks = [{"ReservedPorts": [port(Value=81), port("c", Value=80)]}]
    found = errors(job(group(task(Resources=asked), Networks=networks)))
    texts = [
        "Port label http already in use by taskgroup network",
        "Static port 80 already reserved by taskgroup network:c",
        "Static port 81 already reserved by taskgroup network:http",
    ]
    assert found == in_group(f"Task group network validation failed: {nested(*texts)}")


def test_container_in_a_group_on_the_bridge_gets_a_warning() -> None:
    bridge = [{"Mode": "bridge"}]
    plain = task(Driver="podman", Config={"image": "x"})
    own = task("own", Driver="podman", Config={"image": "x", "network_mode": "host"})
    found = validate(complete(job(group(plain, own, Networks=bridge)))).remarks
    (warning,) = [text for text in found if "cannot join" in text]
    assert warning.startswith('task "')
    assert "own" not in warning
    assert not any("cannot join" in text for text in validate(complete(job(group(plain)))).remarks)
