"""Defaults that depend on more than one field, and equality of jobs."""

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from daemon.jobs.register import JobRegisterRequest
from daemon.jobspec.canonicalize import canonicalize, keep_scaling_ids, same_definition
from storage.errors import Malformed
from storage.records import codec
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.codec import RecordShape, encode, job_document
from storage.records.group import ROLLING_UPDATE, Migrate, ReschedulePolicy, Update
from storage.records.job import Job, SubmittedJob, VersionTag
from storage.records.task import RestartPolicy
from tests.unit.jobspec.build import (
    complete,
    group,
    job,
    only_group,
    only_service,
    only_task,
    task,
)
from tests.unit.jobspec.recorded import Registration, decode

KEPT_ALIVE = RestartPolicy(attempts=2, interval=30 * MINUTE, delay=15 * SECOND, mode="fail")
RUN_ONCE = RestartPolicy(attempts=3, interval=24 * HOUR, delay=15 * SECOND, mode="fail")


def read_and_written_back(job: Job) -> Job:
    body = b'{"Job":' + encode(job) + b"}"
    written = decode(Registration, body).job
    assert written is not None
    return canonicalize(written)


# ---- the job ------------------------------------------------------------------------------------


def test_empty_job_gets_the_defaults() -> None:
    one = canonicalize({})
    assert (one.id, one.name, one.type, one.priority) == ("", "", "service", 50)
    assert (one.namespace, one.region, one.node_pool) == ("default", "global", "default")
    assert (one.datacenters, one.task_groups) == (["*"], None)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"Name": "n"}, "name", "n"),
        ({"Name": ""}, "name", ""),
        ({"Type": ""}, "type", ""),
        ({"Priority": 0}, "priority", 50),
        ({"Priority": 7}, "priority", 7),
        ({"Datacenters": []}, "datacenters", ["*"]),
        ({"Datacenters": [""]}, "datacenters", [""]),
        ({"NodePool": ""}, "node_pool", "default"),
        ({"NodePool": "gpu"}, "node_pool", "gpu"),
        ({"Namespace": ""}, "namespace", "default"),
        ({"Namespace": "ops"}, "namespace", "ops"),
        ({"Region": ""}, "region", "global"),
        ({"Region": "eu"}, "region", "eu"),
        ({"Meta": {}}, "meta", None),
        ({"Constraints": []}, "constraints", None),
        ({"AllAtOnce": True}, "all_at_once", True),
        ({"Stop": True}, "stop", True),
        ({"Payload": "eA=="}, "payload", "eA=="),
        ({"SecretsNamespace": "s"}, "secrets_namespace", "s"),
        ({"VaultNamespace": "s"}, "secrets_namespace", "s"),
    ],
)
def test_field_set_by_a_client_is_preserved(given: Any, field: str, value: object) -> None:
    assert getattr(complete(job(**given)), field) == value


@pytest.mark.parametrize(
    "given",
    [
        {"Status": "dead", "StatusDescription": "x", "Stable": True},
        {"Version": 9, "SubmitTime": 5, "CreateIndex": 1, "ModifyIndex": 2, "JobModifyIndex": 3},
        {"VersionTag": {"Name": "golden"}},
        {"ParentID": "p", "Dispatched": True, "DispatchIdempotencyToken": "t"},
        {"ServiceTokenID": "a", "NomadTokenID": "a", "ConsulNamespace": "c"},
        {"SecretsToken": "s", "ServiceDiscoveryToken": "s", "VaultToken": "s"},
    ],
)
def test_server_side_fields_of_a_job_are_ignored(given: Any) -> None:
    assert complete(job(**given)) == complete(job())


def test_job_without_namespace_and_region_gets_those_of_the_caller() -> None:
    one = canonicalize({}, namespace="ops", region="eu")
    assert (one.namespace, one.region) == ("ops", "eu")


def test_global_region_is_the_local_region() -> None:
    assert canonicalize({"Region": "global"}, region="eu").region == "eu"


def test_canonicalization_does_not_change_its_input() -> None:
    given = job(group(Networks=[{"DynamicPorts": [{"Label": "a"}]}]), Affinities=[{"LTarget": "a"}])
    before = deepcopy(given)
    canonicalize(given)
    assert given == before


def test_periodic_jobs_run_by_cron_in_utc() -> None:
    one = complete(job(Type="batch", Periodic={"Spec": "@daily", "TimeZone": ""})).periodic
    assert one is not None
    assert (one.enabled, one.spec_type, one.time_zone, one.specs) == (True, "cron", "UTC", [])


def test_dispatch_payload_is_optional_by_default() -> None:
    one = complete(job(Type="batch", ParameterizedJob={})).parameterized_job
    assert one is not None
    assert (one.payload, one.meta_required) == ("optional", None)


@pytest.mark.parametrize("block", ["Affinities", "Spreads"])
def test_affinities_and_spreads_have_a_default_weight_of_fifty(block: str) -> None:
    one = complete(job(group(**{block: [{}]}), **{block: [{}, {"Weight": 7}]}))
    weights = [item.weight for item in getattr(one, block.lower())]
    assert weights == [50, 7]
    assert getattr((one.task_groups or [])[0], block.lower())[0].weight == 50


def test_regions_of_a_job_are_preserved_with_their_defaults() -> None:
    one = complete(job(Multiregion={"Regions": [{"Name": "eu"}]})).multiregion
    assert one is not None
    assert one.strategy is not None
    (region,) = one.regions or []
    assert (region.count, region.datacenters, region.meta) == (1, [], {})


# ---- policies of groups ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("service", KEPT_ALIVE),
        ("system", KEPT_ALIVE),
        ("batch", RUN_ONCE),
        ("sysbatch", RUN_ONCE),
        ("unknown", RUN_ONCE),
    ],
)
def test_restart_policy_depends_on_the_job_type(kind: str, policy: RestartPolicy) -> None:
    one = only_group(job(Type=kind))
    assert one.restart_policy == policy
    assert [each.restart_policy for each in one.tasks or ()] == [policy]


def test_restart_block_of_a_task_inherits_from_its_group() -> None:
    own = task(RestartPolicy={"Attempts": 9})
    one = only_group(job(group(own, RestartPolicy={"Delay": SECOND, "Mode": "delay"})))
    wanted = msgspec.structs.replace(KEPT_ALIVE, delay=SECOND, mode="delay")
    assert one.restart_policy == wanted
    assert (one.tasks or [])[0].restart_policy == msgspec.structs.replace(wanted, attempts=9)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        (
            "service",
            ReschedulePolicy(
                delay=30 * SECOND, delay_function="exponential", max_delay=HOUR, unlimited=True
            ),
        ),
        (
            "batch",
            ReschedulePolicy(
                attempts=1, interval=24 * HOUR, delay=5 * SECOND, delay_function="constant"
            ),
        ),
        ("system", None),
        ("sysbatch", None),
        ("unknown", ReschedulePolicy()),
    ],
)
def test_reschedule_policy_depends_on_the_job_type(
    kind: str, policy: ReschedulePolicy | None
) -> None:
    assert only_group(job(Type=kind)).reschedule_policy == policy


def test_reschedule_block_of_a_group_inherits_from_the_job() -> None:
    one = only_group(
        job(
            group(ReschedulePolicy={"Attempts": 2, "Unlimited": False}),
            Reschedule={"Attempts": 5, "Interval": HOUR},
        )
    )
    assert one.reschedule_policy == ReschedulePolicy(
        attempts=2,
        interval=HOUR,
        delay=30 * SECOND,
        delay_function="exponential",
        max_delay=HOUR,
        unlimited=False,
    )


@pytest.mark.parametrize(
    ("kind", "policy"), [("service", Migrate()), ("batch", None), ("system", None)]
)
def test_only_services_migrate_by_default(kind: str, policy: Migrate | None) -> None:
    assert only_group(job(Type=kind)).migrate == policy


def test_migrate_block_of_the_job_applies_to_all_groups() -> None:
    one = only_group(
        job(group(Migrate={"MaxParallel": 3}), Type="batch", Migrate={"HealthCheck": "x"})
    )
    assert one.migrate == Migrate(max_parallel=3, health_check="x")


@pytest.mark.parametrize(
    ("kind", "of_job", "of_group"),
    [
        ("service", Update(stagger=30 * SECOND, max_parallel=1), ROLLING_UPDATE),
        ("system", Update(stagger=30 * SECOND, max_parallel=1), ROLLING_UPDATE),
        ("batch", Update(), None),
        ("sysbatch", Update(), None),
    ],
)
def test_services_and_system_jobs_have_a_default_update_block(
    kind: str, of_job: Update, of_group: Update | None
) -> None:
    given = job(Type=kind)
    assert complete(given).update == of_job
    assert only_group(given).update == of_group


def test_update_block_of_a_group_inherits_from_the_job_per_field() -> None:
    given = job(group(Update={"Canary": 2}), Update={"MaxParallel": 3, "AutoRevert": True})
    wanted = msgspec.structs.replace(ROLLING_UPDATE, max_parallel=3, auto_revert=True, canary=2)
    assert only_group(given).update == wanted
    assert complete(given).update == Update(stagger=30 * SECOND, max_parallel=3)


def test_job_without_updates_has_no_update_block() -> None:
    given = job(Update={"MaxParallel": 0})
    assert complete(given).update == Update()
    assert only_group(given).update == msgspec.structs.replace(ROLLING_UPDATE, max_parallel=0)


def test_zero_update_block_is_removed() -> None:
    zero = msgspec.to_builtins(Update())
    assert only_group(job(Update=zero)).update is None


# ---- groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 1),
        ({"Count": 0}, 0),
        ({"Count": 5}, 5),
        ({"Scaling": {"Min": 3, "Max": 9}}, 3),
        ({"Scaling": {"Max": 9}}, 1),
        ({"Count": 2, "Scaling": {"Min": 3}}, 2),
    ],
)
def test_group_count_defaults_to_one_or_the_scaling_minimum(given: Any, count: int) -> None:
    assert only_group(job(group(**given))).count == count


def test_scaling_policy_targets_its_group() -> None:
    policy = only_group(job(group(Count=2, Scaling={"Policy": {"k": 1}}))).scaling
    assert policy is not None
    assert policy.target == {"Namespace": "default", "Job": "g", "Group": "web"}
    assert (policy.type, policy.min, policy.max, policy.enabled) == ("horizontal", 2, -1, True)
    assert (policy.policy, policy.id, policy.create_index) == ({"k": 1}, "", 0)


def test_scaling_policy_of_a_task_targets_the_task() -> None:
    (policy,) = only_task(job(group(task(ScalingPolicies=[{"Max": 3}])))).scaling_policies or []
    assert policy.target == {
        "Namespace": "default",
        "Job": "g",
        "Group": "web",
        "Task": "main",
    }


@pytest.mark.parametrize(
    "given",
    [
        {"MaxClientDisconnect": SECOND},
        {"StopAfterClientDisconnect": SECOND},
        {"PreventRescheduleOnLost": True},
        {"Volumes": {"v": {"Type": "tape"}}},
        {"Volumes": {"v": None}},
        {"Volumes": {}},
        {"Networks": [], "Services": [], "Spreads": [], "Meta": {}},
    ],
)
def test_setting_without_effect_on_a_group_is_not_stored(given: Any) -> None:
    assert only_group(job(group(**given))) == only_group(job())


def test_ports_use_the_default_host_network() -> None:
    ports = [{"Label": "a"}, {"Label": "b", "HostNetwork": "public"}]
    given = {"Mode": "host", "Device": "eth0", "DynamicPorts": ports, "ReservedPorts": []}
    (network,) = only_group(job(group(Networks=[given]))).networks or []
    assert [port.host_network for port in network.dynamic_ports or ()] == ["default", "public"]
    assert (network.reserved_ports, network.device) == (None, "")


def test_network_shows_only_its_set_fields() -> None:
    given = {"Mode": "host", "DynamicPorts": [{"Label": "a"}]}
    (network,) = only_group(job(group(Networks=[given]))).networks or []
    assert msgspec.to_builtins(network) == {
        "Mode": "host",
        "DynamicPorts": [{"Label": "a", "HostNetwork": "default"}],
    }


def test_an_allocation_on_a_lost_node_is_replaced_by_default() -> None:
    block = only_group(job(group(Disconnect={"Reconcile": ""}))).disconnect
    assert block is not None
    assert (block.lost_after, block.replace, block.reconcile) == (0, True, "best_score")


def test_discovery_namespace_of_a_group_defaults_to_the_job_namespace() -> None:
    given = job(group(Consul={}), group(Consul={"Namespace": "own"}), ConsulNamespace="c")
    blocks = [task_group.consul for task_group in complete(given).task_groups or ()]
    assert [(block.namespace, block.cluster) for block in blocks if block] == [
        ("c", "default"),
        ("own", "default"),
    ]


# ---- tasks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "cpu", "cores", "memory"),
    [
        ({}, 100, 0, 300),
        ({"CPU": 0}, 0, 0, 300),
        ({"CPU": 7, "MemoryMB": 20}, 7, 0, 20),
        ({"Cores": 2}, 0, 2, 300),
        ({"Cores": 0}, 0, 0, 300),
        ({"Cores": 2, "CPU": 50}, 50, 2, 300),
        ({"DiskMB": 500}, 100, 0, 300),
    ],
)
def test_task_requests_mhz_unless_it_requests_cores(
    given: Any, cpu: int, cores: int, memory: int
) -> None:
    found = only_task(job(group(task(Resources=given)))).resources
    assert (found.cpu, found.cores, found.memory_mb, found.disk_mb) == (cpu, cores, memory, 0)


def test_device_count_defaults_to_one() -> None:
    given = {"Devices": [{"Name": "gpu", "Affinities": [{}]}], "NUMA": {"Devices": []}}
    found = only_task(job(group(task(Resources=given)))).resources
    (device,) = found.devices or []
    assert (device.count, (device.affinities or [])[0].weight) == (1, 50)
    assert found.numa is not None
    assert (found.numa.affinity, found.numa.devices) == ("none", None)


@pytest.mark.parametrize(("given", "timeout"), [({}, 5), ({"KillTimeout": 0}, 5)])
def test_kill_timeout_defaults_to_five_seconds(given: Any, timeout: int) -> None:
    assert only_task(job(group(task(**given)))).kill_timeout == timeout * SECOND


def test_every_task_has_a_default_identity() -> None:
    one = only_task(job())
    assert one.identity is not None
    assert (one.identity.name, one.identity.audience) == ("default", ["nomadproject.io"])
    assert one.identities is None


def test_default_identity_is_moved_out_of_the_list() -> None:
    given = [{"Name": "x", "ChangeSignal": "sighup"}, {"Env": True, "Audience": ["other"]}]
    one = only_task(job(group(task(Identities=given))))
    assert one.identity is not None
    assert (one.identity.name, one.identity.audience) == ("default", ["nomadproject.io"])
    assert one.identity.env
    assert [(each.name, each.change_signal) for each in one.identities or ()] == [("x", "SIGHUP")]


def test_last_of_two_default_identities_is_used_and_the_other_remains() -> None:
    given = [{"File": True}, {"Env": True}]
    one = only_task(job(group(task(Identities=given))))
    assert one.identity is not None
    assert one.identity.env
    assert [each.name for each in one.identities or ()] == ["default"]


def test_vault_block_gets_the_namespace_of_the_job_and_its_policies() -> None:
    given = task(SecretsConfig={"Policies": ["p"], "ChangeSignal": "sigusr1"})
    block = only_task(job(group(given), SecretsNamespace="s")).secrets_config
    assert block is not None
    assert (block.namespace, block.cluster, block.change_mode) == ("s", "default", "restart")
    assert (block.change_signal, block.env) == ("SIGUSR1", True)
    assert block.policies == ["p"]


def test_vault_block_without_policies_has_none() -> None:
    given = task(SecretsConfig={"Policies": []})
    block = only_task(job(group(given))).secrets_config
    assert "Policies" not in msgspec.to_builtins(block)


@pytest.mark.parametrize(
    ("given", "signal"),
    [
        ({}, ""),
        ({"ChangeMode": "signal"}, "SIGHUP"),
        ({"ChangeMode": "signal", "ChangeSignal": "sigusr1"}, "SIGUSR1"),
        ({"ChangeSignal": ""}, ""),
    ],
)
def test_template_signal_defaults_to_sighup(given: Any, signal: str) -> None:
    (template,) = only_task(job(group(task(Templates=[given])))).templates or []
    assert (template.change_signal, template.perms, template.left_delim) == (signal, "0644", "{{")


def test_change_script_timeout_defaults_to_five_seconds() -> None:
    given = {"ChangeScript": {"Command": "x"}}
    (template,) = only_task(job(group(task(Templates=[given])))).templates or []
    assert template.change_script is not None
    assert (template.change_script.args, template.change_script.timeout) == ([], 5 * SECOND)


@pytest.mark.parametrize(
    ("given", "destination"),
    [
        ({}, "local/"),
        ({"GetterMode": "dir"}, "local/"),
        ({"GetterMode": "file", "GetterSource": "http://h/a/x.tgz"}, "local/x.tgz"),
        ({"GetterMode": "file", "GetterSource": "http://h/a/"}, "local/a"),
        ({"GetterMode": "file"}, "local"),
        ({"GetterMode": "file", "RelativeDest": "d"}, "d"),
    ],
)
def test_artifact_destination_defaults_to_the_task_directory(given: Any, destination: str) -> None:
    (artifact,) = only_task(job(group(task(Artifacts=[given])))).artifacts or []
    assert artifact.relative_dest == destination


@pytest.mark.parametrize(
    "given",
    [
        {"Artifacts": [], "Templates": [], "Actions": [], "VolumeMounts": [], "Identities": []},
        {"Config": {}, "Env": {}, "Meta": {}},
        {"VolumeMounts": [{"Destination": "/d"}]},
        {"Schedule": {}},
    ],
)
def test_setting_without_effect_on_a_task_is_not_stored(given: Any) -> None:
    assert only_task(job(group(task(**given)))) == only_task(job())


def test_storage_plugin_has_default_directories() -> None:
    block = only_task(job(group(task(CSIPluginConfig={"ID": "i"})))).csi_plugin_config
    assert block is not None
    assert (block.mount_dir, block.stage_publish_base_dir) == ("/csi", "/local/csi")
    assert block.health_timeout == 30 * SECOND


# ---- services -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("", "g-web"),
        ("api", "api"),
        ("${JOB}-x", "g-x"),
        ("${TASKGROUP}", "web"),
        ("${BASE}", "g-web-group"),
        ("${NOMAD_DC}-x", "${NOMAD_DC}-x"),
        ("$JOB", "$JOB"),
    ],
)
def test_a_service_of_a_group_is_named_after_job_and_group(name: str, wanted: str) -> None:
    assert only_service(job(group(Services=[{"Name": name}]))).name == wanted


def test_service_of_a_task_is_named_after_job_group_and_task() -> None:
    (one,) = only_task(job(group(task(Services=[{}])))).services or []
    assert (one.name, one.task_name) == ("g-web-main", "main")


@pytest.mark.parametrize(
    ("provider", "namespace"), [("nomad", "ops"), ("consul", "default"), ("", "default"), ("x", "")]
)
def test_service_namespace_depends_on_the_provider(provider: str, namespace: str) -> None:
    given = job(group(Services=[{"Provider": provider}]), Namespace="ops")
    assert only_service(given).namespace == namespace


def test_a_service_has_its_defaults() -> None:
    one = only_service(job(group(Services=[{"Weights": {"Passing": 3, "Warning": -1}}])))
    assert (one.address_mode, one.on_update, one.provider) == ("auto", "require_healthy", "consul")
    assert one.weights is not None
    assert (one.weights.passing, one.weights.warning) == (3, 1)
    assert "CheckRestart" not in msgspec.to_builtins(one)


def test_check_inherits_from_its_service() -> None:
    checks = [{"SuccessBeforePassing": -3}, {"Name": "n", "OnUpdate": "ignore_warnings"}]
    given = {"Name": "api", "OnUpdate": "ignore", "TaskName": "main", "Checks": checks}
    first, second = only_service(job(group(Services=[given]))).checks or []
    assert (first.name, first.on_update) == ('service: "api" check', "ignore")
    assert (first.task_name, first.success_before_passing) == ("main", 0)
    assert (second.name, second.on_update) == ("n", "ignore_warnings")


def test_check_of_a_task_names_the_task() -> None:
    given = task(Services=[{"Checks": [{"TaskName": "other"}]}])
    (one,) = only_task(job(group(given))).services or []
    assert [check.task_name for check in one.checks or ()] == ["main"]


@pytest.mark.parametrize(
    ("of_service", "of_check", "wanted"),
    [
        (None, None, None),
        ({"Limit": 3}, None, (3, SECOND, False)),
        (None, {"Limit": 2, "Grace": 5}, (2, 5, False)),
        ({"Limit": 3, "Grace": 7}, {"Limit": 9}, (9, 7, False)),
        ({"Limit": 3}, {"Limit": 0, "IgnoreWarnings": True}, (3, SECOND, True)),
        ({"Limit": 3}, {"Limit": -1, "Grace": 0}, (3, 0, False)),
        ({"IgnoreWarnings": True}, {"IgnoreWarnings": False}, (0, SECOND, True)),
    ],
)
def test_check_restart_inherits_from_the_service(
    of_service: Any, of_check: Any, wanted: tuple[int, int, bool] | None
) -> None:
    given = {"CheckRestart": of_service, "Checks": [{"CheckRestart": of_check}]}
    (check,) = only_service(job(group(Services=[given]))).checks or []
    block = check.check_restart
    assert (block and (block.limit, block.grace, block.ignore_warnings)) == wanted


# ---- the same job -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "dead", "status_description": "x", "stable": True},
        {"version": 3, "version_tag": VersionTag(name="golden")},
        {"submit_time": 1, "create_index": 2, "modify_index": 3, "job_modify_index": 4},
    ],
)
def test_status_changes_of_a_job_do_not_change_its_definition(changes: Any) -> None:
    one = complete(job())
    assert same_definition(one, msgspec.structs.replace(one, **changes))


@pytest.mark.parametrize(
    "given",
    [
        {"Meta": {"a": "1"}},
        {"Priority": 51},
        {"Stop": True},
        {"Datacenters": ["dc1"]},
        {"TaskGroups": [group(Count=2)]},
        {"TaskGroups": [group(task(Config={"x": 1}))]},
        {"TaskGroups": []},
    ],
)
def test_any_different_setting_changes_the_definition(given: Any) -> None:
    assert not same_definition(complete(job()), complete({**job(), **given}))


def test_number_in_a_driver_config_is_no_boolean() -> None:
    one, other = (complete(job(group(task(Config={"x": value})))) for value in (1, True))
    assert not same_definition(one, other)


def test_the_order_of_keys_does_not_change_the_definition() -> None:
    one, other = ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    assert same_definition(complete(job(Meta=one)), complete(job(Meta=other)))


def test_ids_of_scaling_policies_do_not_change_the_definition() -> None:
    one = complete(job(group(Scaling={"Max": 3})))
    assert same_definition(one, keep_scaling_ids(one, None, iter(["id"]), 7))


def test_full_job_is_unchanged_after_a_round_trip() -> None:
    everything = job(
        group(
            task(
                Services=[{"Name": "s", "Provider": "nomad", "Checks": [{"Type": "tcp"}]}],
                Templates=[{"ChangeMode": "signal"}],
                Identities=[{"Name": "x"}],
                Artifacts=[{"GetterMode": "file", "GetterSource": "a/b"}],
                KillSignal="SIGTERM",
                Resources={"Cores": 1, "Devices": [{"Name": "gpu"}], "NUMA": {}},
                SecretsConfig={},
                Consul={"Partition": "p"},
            ),
            Networks=[{"Mode": "bridge", "DynamicPorts": [{"Label": "a"}]}],
            Scaling={"Max": 3},
            Update={"Canary": 1},
            Disconnect={},
            Volumes={"v": {"Type": "host", "Source": "s"}},
        ),
        Type="service",
        Update={"MaxParallel": 2},
        Reschedule={"Attempts": 1},
        Spreads=[{"Attribute": "a"}],
    )
    one = complete(everything)
    assert same_definition(one, read_and_written_back(one))


@given(
    kind=st.sampled_from(["service", "batch", "system", "sysbatch"]),
    update=st.dictionaries(
        st.sampled_from(["MaxParallel", "Stagger", "Canary"]), st.integers(0, 3)
    ),
    restart=st.dictionaries(st.sampled_from(["Attempts", "Delay", "Interval"]), st.integers(0, 9)),
    name=st.text(max_size=5),
)
def test_round_trip_never_changes_a_job(kind: str, update: Any, restart: Any, name: str) -> None:
    given = job(group(Update=update, RestartPolicy=restart), Type=kind, Update=update, Name=name)
    one = complete(given)
    assert same_definition(one, read_and_written_back(one))


def test_stored_job_is_equal_to_the_registered_one() -> None:
    one = complete(job(group(task(Services=[{"Provider": "nomad"}]))))
    head = {name: msgspec.to_builtins(one)[name] for name in ("Status", "Version", "Stable")}
    stored = {**msgspec.json.decode(job_document(one).encode()), **head}
    assert same_definition(one, msgspec.convert(stored, Job))


# ---- numbers of scaling policies ------------------------------------------------------------------


def test_a_new_scaling_policy_gets_a_new_id() -> None:
    one = keep_scaling_ids(complete(job(group(Scaling={"Max": 3}))), None, iter(["new"]), 7)
    policy = (one.task_groups or [])[0].scaling
    assert policy is not None
    assert (policy.id, policy.create_index, policy.modify_index) == ("new", 7, 7)


@pytest.mark.parametrize(("most", "modified"), [(3, 7), (4, 9)])
def test_scaling_policy_keeps_its_id_and_records_changes(most: int, modified: int) -> None:
    before = keep_scaling_ids(complete(job(group(Scaling={"Max": 3}))), None, iter(["old"]), 7)
    after = keep_scaling_ids(complete(job(group(Scaling={"Max": most}))), before, iter([]), 9)
    policy = (after.task_groups or [])[0].scaling
    assert policy is not None
    assert (policy.id, policy.create_index, policy.modify_index) == ("old", 7, modified)


def test_job_without_scaling_needs_no_ids() -> None:
    one = complete(job())
    assert keep_scaling_ids(one, None, iter([]), 7) is one


# ---- nulls in every place -----------------------------------------------------------------------


def one_of(kind: inspect.Type, hint: object = None) -> Any:
    """Return a value of a type, with one element in each list and map."""
    for mark in marks_of(hint):
        if isinstance(mark, RecordShape):
            return one_of(inspect.type_info(mark.record))
    match kind:
        case inspect.Metadata():
            return one_of(kind.type)
        case inspect.UnionType():
            return one_of(kind.types[0])
        case inspect.StructType():
            hints = get_type_hints(kind.cls, include_extras=True)
            return {
                field.encode_name: one_of(field.type, hints[field.name]) for field in kind.fields
            }
        case inspect.ListType():
            return [one_of(kind.item_type)]
        case inspect.DictType():
            return {"k": one_of(kind.value_type)}
        case _:
            return {inspect.IntType: 1, inspect.BoolType: True}.get(type(kind), "x")


def marks_of(hint: object) -> Iterator[object]:
    """Yield the annotations of a type and of the parts of a union."""
    for part in (hint, *getattr(hint, "__args__", ())):
        yield from getattr(part, "__metadata__", ())


def with_null(value: Any) -> Iterator[Any]:
    """Yield copies of a value, each with a null in a different place."""
    yield None
    if isinstance(value, dict):
        for name, one in value.items():
            for changed in with_null(one):
                yield {**value, name: changed}
    if isinstance(value, list):
        for changed in with_null(value[0]):
            if changed is not None or not isinstance(value[0], dict):
                yield [changed]


def with_null_block(value: Any, path: str = "") -> Iterator[tuple[Any, str]]:
    """Yield copies of a value, each with a null in place of another block of a list or map.

    Also yield the path of the null.
    """
    if isinstance(value, list) and isinstance(value[0], dict):
        yield [None], f"{path}[0]"
    if isinstance(value, dict):
        for name, one in value.items():
            for changed, place in with_null_block(one, f"{path}.{name}" if path else name):
                yield {**value, name: changed}, place
    if isinstance(value, list):
        for changed, place in with_null_block(value[0], path):
            yield [changed], place


WITH_NULL_BLOCK = {
    place: one for one, place in with_null_block(one_of(inspect.type_info(SubmittedJob)))
}


@pytest.mark.parametrize("place", WITH_NULL_BLOCK)
def test_null_in_place_of_a_block_of_a_list_is_refused(place: str) -> None:
    body = msgspec.json.encode({"Job": WITH_NULL_BLOCK[place]})
    with pytest.raises(Malformed, match=re.escape(f"{place} is null: write a block there")):
        codec.decode(JobRegisterRequest, body)


def test_each_list_of_blocks_of_a_job_is_tested_with_a_null() -> None:
    lists = {"TaskGroups[0]", "Constraints[0]", "TaskGroups.Services.Checks[0]"}
    assert lists <= WITH_NULL_BLOCK.keys()
    assert len(WITH_NULL_BLOCK) > 30


def test_a_null_in_any_place_is_read_as_go_reads_it() -> None:
    whole = one_of(inspect.type_info(SubmittedJob))
    assert whole["TaskGroups"][0]["Tasks"][0]["Services"][0]["Checks"][0]["Header"] == {"k": ["x"]}
    jobs = [one for one in with_null(whole) if one]
    assert len(jobs) > 580
    for one in jobs:
        complete(one)


def test_a_null_among_texts_is_an_empty_one() -> None:
    found = only_task(job(group(task(Services=[{"Tags": ["a", None], "Meta": {"k": None}}]))))
    (service,) = found.services or []
    assert (service.tags, service.meta) == (["a", ""], {"k": ""})
