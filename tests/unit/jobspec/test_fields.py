"""docs/fields.md shows for every field whether it has an effect; a field without one causes a
warning with the reason."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from daemon.jobspec.rules import unsupported
from daemon.jobspec.rules.unsupported import INERT, unsupported_fields
from daemon.jobspec.validate import validate
from storage.records.base import SECOND
from storage.records.group import Disconnect, TaskGroup
from storage.records.job import Job, Multiregion, SubmittedJob
from storage.records.task import (
    Artifact,
    Check,
    Consul,
    CSIPluginConfig,
    Network,
    SecretsConfig,
    Service,
    Task,
    VolumeMount,
)
from tests.samples import group, job, task

PAGE = (Path(__file__).parents[3] / "docs" / "fields.md").read_text()
SECTIONS = {
    title: dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))
    for title, text in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
STATES = (
    "supported",
    "stored, with a warning: ",
    "stored",
    "read-only",
    "refused",
    "checked",
    "planned",
)


def records(kind: inspect.Type, found: dict[str, type]) -> dict[str, type]:
    """Return every record that a job is made of, by name."""
    match kind:
        case inspect.StructType() if kind.cls.__name__ not in found:
            found[kind.cls.__name__] = kind.cls
            for field in kind.fields:
                records(field.type, found)
        case inspect.Metadata():
            records(kind.type, found)
        case inspect.UnionType():
            for type_ in kind.types:
                records(type_, found)
        case inspect.ListType():
            records(kind.item_type, found)
        case inspect.DictType():
            records(kind.value_type, found)
    return found


RECORDS = records(inspect.type_info(SubmittedJob), {})
RECORDS["Job"] = RECORDS.pop("SubmittedJob")


def test_every_record_has_a_section() -> None:
    assert SECTIONS.keys() == RECORDS.keys()


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_described(name: str) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(RECORDS[name])}
    assert SECTIONS[name].keys() == fields


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_has_a_description(name: str) -> None:
    assert [text for text in SECTIONS[name].values() if not text.startswith(STATES)] == []


@pytest.mark.parametrize("name", RECORDS)
def test_warnings_match_the_documentation(name: str) -> None:
    mark = "stored, with a warning: "
    said = {
        field: text.removeprefix(mark) for field, text in SECTIONS[name].items() if mark in text
    }
    reasons = next((one for kind, one in INERT.items() if kind.__name__ == name), {})
    wire = {field.name: field.encode_name for field in msgspec.structs.fields(RECORDS[name])}
    assert said == {wire[field]: reason for field, reason in reasons.items()}


SET: dict[type, dict[str, Any]] = {
    Job: {
        "consul_namespace": "ops",
        "multiregion": Multiregion(),
        "secrets_namespace": "ops",
    },
    TaskGroup: {
        "consul": Consul(),
        "disconnect": Disconnect(),
        "max_client_disconnect": 1,
        "prevent_reschedule_on_lost": True,
        "stop_after_client_disconnect": 1,
    },
    Task: {
        "consul": Consul(),
        "csi_plugin_config": CSIPluginConfig(),
        "kind": "connect-proxy:x",
        "scaling_policies": [{}],
    },
    Service: {"connect": {"Native": True}, "enable_tag_override": True},
    Check: {"advertise": "10.0.0.1"},
    SecretsConfig: {"namespace": "ops"},
    VolumeMount: {"propagation_mode": "bidirectional", "selinux_label": "z"},
}
CASES = [(kind, field, value) for kind, fields in SET.items() for field, value in fields.items()]


def job_with(record: type, /, **fields: Any) -> Job:
    given = {type_: fields if type_ is record else {} for type_ in SET}
    check = Check(type="tcp", interval=SECOND, timeout=SECOND, **given[Check])
    service = Service(
        name="http", checks=[check] if record is Check else None, port_label="80", **given[Service]
    )
    mount = VolumeMount(volume="data", destination="/data", **given[VolumeMount])
    inner = task(
        services=[service] if record in (Service, Check) else None,
        secrets_config=SecretsConfig(**given[SecretsConfig]) if record is SecretsConfig else None,
        volume_mounts=[mount] if record is VolumeMount else None,
        **given[Task],
    )
    return job("web", group("web", inner, **given[TaskGroup]), **given[Job])


@pytest.mark.parametrize(("kind", "field", "value"), CASES)
def test_field_without_effect_gets_a_warning(kind: type, field: str, value: Any) -> None:
    (warning,) = unsupported_fields(job_with(kind, **{field: value}))
    assert warning.endswith(f"is stored, but has no effect: {INERT[kind][field]}")
    assert warning in validate(job_with(kind, **{field: value})).warnings


def test_every_unsupported_field_is_tested() -> None:
    assert {kind: fields.keys() for kind, fields in SET.items()} == {
        kind: fields.keys() for kind, fields in INERT.items()
    }


def test_large_job_reads_the_fields_of_each_class_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, fields = list[type](), msgspec.structs.fields

    def counted(kind: type) -> tuple[msgspec.structs.FieldInfo, ...]:
        asked.append(kind)
        return fields(kind)

    monkeypatch.setattr(msgspec.structs, "fields", counted)
    unsupported._inert_fields.cache_clear()
    assert not list(unsupported_fields(job("etl", *(group(f"s{at}", task()) for at in range(9)))))
    assert asked == [Job, TaskGroup, Task]


@pytest.mark.parametrize("mode", ["", "private"])
def test_private_propagation_causes_no_warning(mode: str) -> None:
    assert not list(unsupported_fields(job_with(VolumeMount, propagation_mode=mode)))


def test_job_without_unsupported_fields_has_no_warning() -> None:
    assert list(unsupported_fields(job())) == []


@pytest.mark.parametrize(
    ("driver", "mode", "count"),
    [("raw_exec", "none", 1), ("exec", "none", 0), ("raw_exec", "host", 0), ("raw_exec", "", 0)],
)
def test_raw_exec_without_a_network_has_a_warning(driver: str, mode: str, count: int) -> None:
    one = group("g", task(driver=driver), networks=[Network(mode=mode)])
    found = [text for text in unsupported_fields(job("web", one)) if "use exec" in text]
    assert len(found) == count


@pytest.mark.parametrize(
    ("source", "options", "is_warned"),
    [
        ("https://h/a.tar.zst", {}, True),
        ("https://h/a.tzst?token=1", {}, True),
        ("https://h/model.zst", {}, True),
        ("https://h/download", {"archive": "tar.zst"}, True),
        ("https://h/model.zst", {"archive": "false"}, False),
        ("https://h/a.tar.gz", {}, False),
        ("https://h/zst", {}, False),
    ],
)
def test_archive_that_cannot_be_unpacked_has_a_warning(
    source: str, options: dict[str, str], is_warned: bool
) -> None:
    one = task(artifacts=[Artifact(getter_source=source, getter_options=options)])
    found = list(unsupported_fields(job("web", group("web", one))))
    assert [f'artifact "{source}" is not unpacked' in text for text in found] == [True] * is_warned
