import msgspec
import pytest

from daemon.runner.core.task_env import (
    TaskDirectories,
    inherited_environment,
    node_values,
    resolve,
    resolve_config,
    task_environment,
)
from storage.records.allocation import AllocatedNetwork, AllocatedPort, Allocation, OfferedPort
from storage.records.job import Job
from storage.records.node import (
    Node,
    NodeCPU,
    NodeDisk,
    NodeMemory,
    NodeResources,
)
from storage.records.task import Task
from tests import samples
from tests.unit.runner.placements import placed

DIRECTORIES = TaskDirectories(shared="/a/alloc", local="/a/main/local", secrets="/a/main/secrets")
VALUES = {
    "node.datacenter": "dc1",
    "node.region": "global",
    "meta.zone": "a",
    "attr.cpu.arch": "amd64",
}
ALLOC_ID = "501d8fff-bd42-684f-58a2-58ec21d7b8ee"


def environment_of(
    task: Task, *, job: Job | None = None, base: dict[str, str] | None = None, **fields: object
) -> dict[str, str]:
    """Return the environment of a task that is the only one in its group."""
    job = job or samples.job("g-env", samples.group("grp", task, meta={"gm": "2"}))
    allocation = msgspec.structs.replace(placed(job, "n", ALLOC_ID), **fields)
    return task_environment(base or {}, allocation, job, task, DIRECTORIES, VALUES)


def with_port(allocation: Allocation, port: AllocatedPort) -> dict[str, object]:
    """Return an allocation's placement with a port in it."""
    resources = allocation.placement.resources
    shared = msgspec.structs.replace(resources.shared, ports=[port])
    resources = msgspec.structs.replace(resources, shared=shared)
    return {"placement": msgspec.structs.replace(allocation.placement, resources=resources)}


def test_environment_has_allocation_job_and_limits() -> None:
    assert environment_of(samples.task()) == {
        "NOMAD_ALLOC_DIR": "/a/alloc",
        "NOMAD_TASK_DIR": "/a/main/local",
        "NOMAD_SECRETS_DIR": "/a/main/secrets",
        "NOMAD_ALLOC_ID": ALLOC_ID,
        "NOMAD_SHORT_ALLOC_ID": "501d8fff",
        "NOMAD_ALLOC_NAME": "g-env.grp[0]",
        "NOMAD_ALLOC_INDEX": "0",
        "NOMAD_TASK_NAME": "main",
        "NOMAD_GROUP_NAME": "grp",
        "NOMAD_JOB_ID": "g-env",
        "NOMAD_JOB_NAME": "g-env",
        "NOMAD_NAMESPACE": "default",
        "NOMAD_DC": "dc1",
        "NOMAD_REGION": "global",
        "NOMAD_CPU_LIMIT": "20",
        "NOMAD_CPU_CORES": "",
        "NOMAD_MEMORY_LIMIT": "20",
        "NOMAD_META_GM": "2",
        "NOMAD_META_gm": "2",
    }


def test_environment_of_a_child_has_its_parent() -> None:
    task = samples.task()
    job = samples.job("p/dispatch-1", samples.group("web", task), parent_id="p")
    assert environment_of(task, job=job)["NOMAD_JOB_PARENT_ID"] == "p"


def test_inner_meta_overrides_outer_and_invalid_characters_become_underscores() -> None:
    task = samples.task(meta={"a-b.c": "task"})
    job = samples.job("j", samples.group("web", task, meta={"a-b.c": "group"}), meta={"x": "1"})
    found = environment_of(task, job=job)
    meta = {name: value for name, value in found.items() if name.startswith("NOMAD_META_")}
    assert meta == {
        "NOMAD_META_a_b.c": "task",
        "NOMAD_META_A_B.C": "task",
        "NOMAD_META_x": "1",
        "NOMAD_META_X": "1",
    }


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (
            AllocatedPort(label="http", value=20001, host_ip="127.0.0.1"),
            {
                "NOMAD_ADDR_http": "127.0.0.1:20001",
                "NOMAD_HOST_ADDR_http": "127.0.0.1:20001",
                "NOMAD_IP_http": "127.0.0.1",
                "NOMAD_HOST_IP_http": "127.0.0.1",
                "NOMAD_PORT_http": "20001",
                "NOMAD_ALLOC_PORT_http": "20001",
                "NOMAD_HOST_PORT_http": "20001",
            },
        ),
        (
            AllocatedPort(label="my-db", value=20002, to=5432, host_ip="::1"),
            {
                "NOMAD_ADDR_my_db": "[::1]:20002",
                "NOMAD_HOST_ADDR_my_db": "[::1]:20002",
                "NOMAD_IP_my_db": "::1",
                "NOMAD_HOST_IP_my_db": "::1",
                "NOMAD_PORT_my_db": "5432",
                "NOMAD_ALLOC_PORT_my_db": "5432",
                "NOMAD_HOST_PORT_my_db": "20002",
            },
        ),
    ],
)
def test_environment_has_the_ports_of_the_task(
    port: AllocatedPort, expected: dict[str, str]
) -> None:
    task = samples.task()
    job = samples.job("j", samples.group("web", task))
    found = environment_of(task, job=job, **with_port(placed(job, "n", ALLOC_ID), port))
    suffix = port.label.replace("-", "_")
    assert {name: value for name, value in found.items() if name.endswith(suffix)} == expected


def test_environment_has_the_ports_of_its_own_network_only() -> None:
    task, other = samples.task("main"), samples.task("other")
    job = samples.job("j", samples.group("web", task, other))
    placement = placed(job, "n", ALLOC_ID).placement
    networks = {
        name: AllocatedNetwork(
            ip="192.0.2.1",
            reserved_ports=[OfferedPort(label=f"{name}_admin", value=8080)],
            dynamic_ports=[OfferedPort(label=f"{name}_http", value=20003, to=80)],
        )
        for name in ("main", "other")
    }
    tasks = {
        name: msgspec.structs.replace(held, networks=[networks[name]])
        for name, held in placement.resources.tasks.items()
    }
    resources = msgspec.structs.replace(placement.resources, tasks=tasks)
    found = environment_of(
        task, job=job, placement=msgspec.structs.replace(placement, resources=resources)
    )
    assert found["NOMAD_ADDR_main_admin"] == "192.0.2.1:8080"
    assert (found["NOMAD_PORT_main_http"], found["NOMAD_HOST_PORT_main_http"]) == ("80", "20003")
    assert not any("other_" in name for name in found)


def test_task_variables_override_all_others_and_can_refer_to_them() -> None:
    task = samples.task(env={"HOME": "/x", "WITH": "${NOMAD_TASK_NAME}-${meta.zone}-${HOME}"})
    found = environment_of(task, base={"HOME": "/root", "LANG": "C"})
    assert (found["HOME"], found["WITH"], found["LANG"]) == ("/x", "main-a-/root", "C")


def test_meta_values_can_refer_to_the_node_and_to_variables() -> None:
    task = samples.task(
        meta={"zone": "${meta.zone}-${attr.cpu.arch}", "own": "${NOMAD_TASK_NAME}", "no": "${no}"},
        env={"ZONE": "zone ${NOMAD_META_zone}"},
    )
    found = environment_of(task)
    assert (found["NOMAD_META_ZONE"], found["NOMAD_META_own"]) == ("a-amd64", "main")
    assert (found["NOMAD_META_no"], found["ZONE"]) == ("${no}", "zone a-amd64")


def test_invalid_characters_in_the_names_of_task_variables_become_underscores() -> None:
    found = environment_of(samples.task(env={"my-key": "1", "discovery.type": "2", "9 x": "3"}))
    given = {name: value for name, value in found.items() if not name.startswith("NOMAD_")}
    assert given == {"my_key": "1", "discovery.type": "2", "__x": "3"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${X}", "1"),
        ('${env["X"]}', "1"),
        ("${attr.cpu.arch}/${meta.zone}", "amd64/a"),
        ("${i} ${X:-y} $X $${X}", "${i} ${X:-y} $X $1"),
        ('${env["none"]} ${meta.none}', '${env["none"]} ${meta.none}'),
    ],
)
def test_reference_is_replaced_and_other_text_is_unchanged(text: str, expected: str) -> None:
    assert resolve(text, {"X": "1"}, VALUES) == expected


def test_references_are_resolved_in_all_texts_of_a_driver_block() -> None:
    block = {"command": "/bin/${X}", "args": ["${X}", 5, {"k": "${meta.zone}"}], "n": True}
    assert resolve_config(block, {"X": "1"}, VALUES) == {
        "command": "/bin/1",
        "args": ["1", 5, {"k": "a"}],
        "n": True,
    }


@pytest.mark.parametrize(
    "name",
    [
        *("STEWARD_TOKEN", "NOMAD_ADDR", "VAULT_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL"),
        *("OPENAI_KEY", "NOTIFY_SOCKET", "LISTEN_FDS", "CREDENTIALS_DIRECTORY", "PYTHONPATH"),
        *("SHLVL", "OLDPWD", "_", "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH2", "LCX", "lang"),
    ],
)
def test_forbidden_variable_is_not_passed_on(name: str) -> None:
    assert inherited_environment({name: "x", "PATH": "/bin"}, bundled=False) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "LANG", "LC_ALL", "LC_TIME", "TZ", "TERM", "HOME", "USER", "LOGNAME", "SHELL"),
        *("TMPDIR", "http_proxy", "HTTPS_PROXY", "no_proxy"),
    ],
)
def test_default_variable_is_passed_on(name: str) -> None:
    assert inherited_environment({name: "x"}, bundled=False) == {name: "x"}


def test_task_environment_adds_names_and_prefixes() -> None:
    given = {"DATABASE_URL": "a", "APP_MODE": "b", "APP": "c", "OTHER": "d"}
    found = inherited_environment(given, ["DATABASE_URL", "APP_*"], bundled=False)
    assert found == {"DATABASE_URL": "a", "APP_MODE": "b"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"LD_LIBRARY_PATH": "/bundle"}, {}),
        ({"LD_LIBRARY_PATH": "/bundle", "LD_LIBRARY_PATH_ORIG": "/u"}, {"LD_LIBRARY_PATH": "/u"}),
    ],
)
def test_tasks_of_a_bundled_agent_get_the_original_library_path(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    assert inherited_environment(given, ["LD_LIBRARY_PATH"], bundled=True) == expected
    assert inherited_environment(given, bundled=True) == {}


def test_node_references_cover_attributes_meta_and_location() -> None:
    node = Node(
        id="n1",
        name="node-1",
        datacenter="dc1",
        node_class="c",
        attributes={"cpu.arch": "amd64"},
        meta={"zone": "a"},
        node_resources=NodeResources(
            cpu=NodeCPU(cpu_shares=1, total_cpu_cores=1, reservable_cpu_cores=[0]),
            memory=NodeMemory(memory_mb=1),
            disk=NodeDisk(disk_mb=1),
            networks=[],
        ),
        drivers={},
    )
    assert node_values(node, "global") == {
        "attr.cpu.arch": "amd64",
        "meta.zone": "a",
        "node.unique.id": "n1",
        "node.unique.name": "node-1",
        "node.datacenter": "dc1",
        "node.class": "c",
        "node.pool": "default",
        "node.region": "global",
    }


def test_missing_field_is_empty() -> None:
    item = {"each.value": "{}", "each.value.a": "1"}
    text = "${each.value.a}${each.value.b}"
    assert (resolve(text, {}, item), resolve(text, {}, {})) == ("1", text)
