"""Differences for each kind of change."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.jobspec.diff import diff_jobs
from daemon.jobspec.diffs.annotations import annotate
from storage.records.codec import Document
from storage.records.diff import JobDiff, ObjectDiff, TaskDiff, TaskGroupDiff
from storage.records.evaluation import DesiredUpdates
from tests.unit.jobspec.build import complete, group, job, task

A, B = {"LTarget": "a", "RTarget": "b", "Operand": "="}, {"LTarget": "c", "Operand": "is_set"}


def diff(old: Document, new: Document) -> JobDiff:
    return diff_jobs(complete(old), complete(new))


def short(found: JobDiff | TaskGroupDiff | TaskDiff | ObjectDiff) -> dict[str, Any]:
    """Return changed fields as `name: old>new`, and unchanged ones as the name alone."""
    fields = [
        field.name if field.type == "None" else f"{field.name}: {field.old}>{field.new}"
        for field in found.fields or ()
    ]
    objects = [(object_.type, object_.name, short(object_)) for object_ in found.objects or ()]
    return {
        **({"fields": fields} if fields else {}),
        **({"objects": objects} if objects else {}),
    }


def of_job(**fields: Any) -> dict[str, Any]:
    """Return the difference after fields were added to a job."""
    return short(diff(job(), job(**fields)))


def of_group(old: Document, new: Document) -> dict[str, Any]:
    """Return the difference after a change of a group."""
    (found,) = diff(job(group(**old)), job(group(**new))).task_groups or []
    return short(found)


def of_task(old: Document, new: Document) -> dict[str, Any]:
    """Return the difference after a change of a task."""
    before, after = (job(group(task(**fields))) for fields in (old, new))
    (found,) = diff(before, after).task_groups or []
    (inner,) = found.tasks or []
    return short(inner)


def added(name: str, **shown: Any) -> dict[str, Any]:
    return {"objects": [("Added", name, shown)]}


# ---- the whole --------------------------------------------------------------------------------------


def test_unchanged_job_has_no_diff() -> None:
    given = job(
        group(task(Config={"a": [1, {"b": None}]}, Env={"X": "1"}), Networks=[{"Mode": "host"}]),
        Meta={"a": "b"},
        Spreads=[{"Attribute": "${node.class}", "Weight": 10}],
    )
    job_diff = diff(given, given)
    assert (job_diff.type, short(job_diff)) == ("None", {})
    assert [task_group.type for task_group in job_diff.task_groups or ()] == ["None"]


def test_new_job_is_added_with_all_fields() -> None:
    job_diff = diff_jobs(None, complete(job()))
    (one,) = job_diff.task_groups or []
    assert (job_diff.type, one.type, [inner.type for inner in one.tasks or ()]) == (
        *("Added", "Added"),
        ["Added"],
    )
    assert "Name: >g" in short(job_diff)["fields"]


def test_groups_and_tasks_are_sorted_and_matched_by_name() -> None:
    job_diff = diff(job(group(Name="b"), group(Name="c")), job(group(Name="c"), group(Name="a")))
    assert [(task_group.name, task_group.type) for task_group in job_diff.task_groups or ()] == [
        ("a", "Added"),
        ("b", "Deleted"),
        ("c", "None"),
    ]


def test_hidden_change_still_marks_a_task_as_edited() -> None:
    lifecycle = {"Hook": "prestart", "Sidecar": True}
    before = job(group(task("main"), task("side")))
    after = job(group(task("main"), task("side", Lifecycle=lifecycle)))
    (found,) = diff(before, after).task_groups or []
    assert [(task.type, short(task)) for task in found.tasks or ()] == [
        ("None", {}),
        ("Edited", {}),
    ]


# ---- jobs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"Meta": {"a": "1"}}, {"fields": ["Meta[a]: >1"]}),
        ({"AllAtOnce": True}, {"fields": ["AllAtOnce: false>true"]}),
        ({"Constraints": [A]}, added("Constraint", fields=["LTarget: >a", "Operand: >=", "RTarget: >b"])),
        (
            {"Affinities": [{**A, "Weight": 50}]},
            added(
                "Affinity",
                fields=["LTarget: >a", "Operand: >=", "RTarget: >b", "Weight: >50"],
            ),
        ),
        (
            {"Spreads": [{"Attribute": "x", "SpreadTarget": [{"Value": "y", "Percent": 70}]}]},
            added(
                "Spread",
                fields=["Attribute: >x", "Weight: >50"],
                objects=[("Added", "SpreadTarget", {"fields": ["Percent: >70", "Value: >y"]})],
            ),
        ),
        (
            {"Datacenters": ["a", "*"]},
            added("Datacenters", fields=["Datacenters: >a", "Datacenters"]),
        ),
        (
            {"UI": {"Description": "d", "Links": [{"Label": "l", "Url": "u"}]}},
            added(
                "UI",
                fields=["Description: >d"],
                objects=[("Added", "Link", {"fields": ["Label: >l", "URL: >u"]})],
            ),
        ),
    ],
)  # fmt: skip
def test_additions_to_a_job_are_listed(fields: Document, shown: dict[str, Any]) -> None:
    assert of_job(**fields) == shown


def test_edited_block_shows_its_unchanged_values() -> None:
    before = {"Type": "batch", "Periodic": {"Specs": ["@daily", "@hourly"]}}
    after = {"Type": "batch", "Periodic": {"Specs": ["@daily", "@weekly"], "TimeZone": "CET"}}
    (found,) = diff(job(**before), job(**after)).objects or []
    specs = {"fields": ["Specs: >@weekly", "Specs", "Specs: @hourly>"]}
    assert (found.name, found.type) == ("Periodic", "Edited")
    assert short(found) == {
        "fields": ["Enabled", "ProhibitOverlap", "Spec", "SpecType", "TimeZone: UTC>CET"],
        "objects": [("Edited", "Specs", specs)],
    }


def test_dispatch_meta_keys_are_compared_as_sets() -> None:
    before = job(Type="batch", ParameterizedJob={"MetaRequired": ["a", "b"]})
    after = job(Type="batch", ParameterizedJob={"MetaRequired": ["b", "a"], "Payload": "forbidden"})
    (found,) = diff(before, after).objects or []
    assert short(found) == {
        "fields": ["Payload: optional>forbidden"],
        "objects": [("None", "MetaRequired", {"fields": ["MetaRequired", "MetaRequired"]})],
    }


# ---- groups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ({"Count": 1}, {"Count": 3}, {"fields": ["Count: 1>3"]}),
        ({"ShutdownDelay": 5}, {}, {"fields": ["ShutdownDelay: 5>"]}),
        ({}, {"ShutdownDelay": 0}, {"fields": ["ShutdownDelay: >0"]}),
        (
            {"Constraints": [A]},
            {"Constraints": [B]},
            {
                "objects": [
                    ("Added", "Constraint", {"fields": ["LTarget: >c", "Operand: >is_set", "RTarget"]}),
                    ("Deleted", "Constraint", {"fields": ["LTarget: a>", "Operand: =>", "RTarget: b>"]}),
                ]
            },
        ),
        ({"Constraints": [A, B]}, {"Constraints": [B, A]}, {}),
        (
            {"Volumes": {"v": {"Name": "v", "Type": "host", "Source": "s"}}},
            {},
            {
                "objects": [
                    (
                        "Deleted",
                        "Volume",
                        {
                            "fields": [
                                *("AccessMode", "AttachmentMode", "Name: v>", "PerAlloc: false>"),
                                *("ReadOnly: false>", "Source: s>", "Sticky: false>", "Type: host>"),
                            ]
                        },
                    )
                ]
            },
        ),
        (
            {"Scaling": {"Max": 3, "Policy": {"cooldown": "1m", "n": 1}}},
            {"Scaling": {"Max": 4, "Policy": {"cooldown": "1m", "n": 1000000}}},
            {
                "objects": [
                    (
                        "Edited",
                        "Scaling",
                        {
                            "fields": ["Max: 3>4"],
                            "objects": [("Edited", "Policy", {"fields": ["n: 1>1e+06"]})],
                        },
                    )
                ]
            },
        ),
        (
            {"Disconnect": {"LostAfter": 60}},
            {"Disconnect": {"LostAfter": 60, "Replace": False}},
            {
                "objects": [
                    (
                        "Edited",
                        "Disconnect",
                        {
                            "fields": [
                                *("LostAfter", "Reconcile", "Replace: true>false"),
                                "StopOnClientAfter",
                            ]
                        },
                    )
                ]
            },
        ),
    ],
)  # fmt: skip
def test_group_changes_are_listed(old: Document, new: Document, shown: dict[str, Any]) -> None:
    assert of_group(old, new) == shown


def test_changed_network_is_deleted_and_added() -> None:
    before = {"Networks": [{"Mode": "host", "DynamicPorts": [{"Label": "http"}]}]}
    after = {"Networks": [{"Mode": "host", "DynamicPorts": [{"Label": "http", "To": 80}]}]}
    shown = of_group(before, after)["objects"]
    assert [(kind, name) for kind, name, _ in shown] == [
        ("Added", "Network"),
        ("Deleted", "Network"),
    ]
    assert shown[0][2]["objects"] == [
        ("Added", "Dynamic Port", {"fields": ["HostNetwork: >default", "Label: >http", "To: >80"]})
    ]


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        (["a:1"], ["b:2"], ["Edited"]),  # a single service matches any other
        (["a:1", "b:2"], ["b:2", "a:1"], []),
        (["a:1", "b:2"], ["b:3", "a:1"], ["Edited"]),  # matched by name
        (["a:1", "b:2"], ["c:2", "a:1"], ["Added", "Deleted"]),  # not matched by port alone
        (["a:1", "b:2"], ["a:1", "c:2"], ["Edited"]),  # matched by port and position
    ],
)
def test_services_are_matched_by_name_port_and_position(
    old: list[str], new: list[str], kinds: list[str]
) -> None:
    def services(texts: list[str]) -> Document:
        pairs = [text.split(":") for text in texts]
        given = [{"Name": name, "PortLabel": port, "Provider": "nomad"} for name, port in pairs]
        return {"Services": given}

    shown = of_group(services(old), services(new)).get("objects", [])
    assert [kind for kind, name, _ in shown if name == "Service"] == kinds


def test_check_is_compared_with_all_fields() -> None:
    def service(limit: int, *values: str) -> Document:
        check = {"Type": "tcp", "Interval": 10**10, "Timeout": 10**9, "Header": {"A": list(values)}}
        check["CheckRestart"] = {"Limit": limit}
        return {"Services": [{"Name": "s", "Provider": "nomad", "Checks": [check]}]}

    ((_, _, shown),) = of_group(service(1, "a"), service(2, "a", "b"))["objects"]
    ((_, name, check),) = shown["objects"]
    assert (name, "Advertise" in check["fields"]) == ("Check", False)
    assert check["objects"] == [
        ("Edited", "Header", {"fields": ["A[0]", "A[1]: >b"]}),
        ("Edited", "CheckRestart", {"fields": ["Grace", "IgnoreWarnings", "Limit: 1>2"]}),
    ]


def test_a_secret_is_compared_with_its_configuration() -> None:
    secret = {"Name": "s", "Provider": "p", "Path": "a"}
    shown = of_task({"Secrets": [secret]}, {"Secrets": [{**secret, "Config": {"a": 1.5}}]})
    assert shown["objects"] == [
        ("Edited", "Secret", {"fields": ["Config[a]: >1.5", "Name", "Path", "Provider"]})
    ]


# ---- tasks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ({"Env": {"a": "1"}}, {"Env": {"b": "1"}}, {"fields": ["Env[a]: 1>", "Env[b]: >1"]}),
        (
            {"Config": {"args": ["x"], "port": 80}},
            {"Config": {"args": ["x", "y"], "port": 80, "nested": {"k": [True, None]}}},
            {
                "objects": [
                    (
                        "Edited",
                        "Config",
                        {
                            "fields": [
                                *("args[0]", "args[1]: >y"),
                                *("nested[k][0]: >true", "nested[k][1]: >nil", "port"),
                            ]
                        },
                    )
                ]
            },
        ),
        ({"Config": {"a": 1}}, {"Config": {"a": True}}, {"objects": [("Edited", "Config", {"fields": ["a: 1>true"]})]}),
        (
            {"Templates": [{"DestPath": "a", "EmbeddedTmpl": "1"}]},
            {"Templates": [{"DestPath": "b", "EmbeddedTmpl": "2"}, {"DestPath": "a", "EmbeddedTmpl": "1"}]},
            {
                "objects": [
                    (
                        "Added",
                        "Template",
                        {
                            "fields": [
                                *("ChangeMode: >restart", "ChangeSignal", "DestPath: >b"),
                                *("EmbeddedTmpl: >2", "Envvars: >false", "ErrMissingKey: >false"),
                                *("LeftDelim: >{{", "Once: >false", "Perms: >0644"),
                                *("RightDelim: >}}", "SourcePath", "Splay: >5000000000"),
                                "VaultGrace: >0",
                            ]
                        },
                    )
                ]
            },
        ),
        (
            {"Actions": [{"Name": "a", "Command": "x", "Args": ["1"]}]},
            {"Actions": [{"Name": "a", "Command": "x", "Args": ["2"]}]},
            {
                "objects": [
                    (
                        "Edited",
                        "Action",
                        {
                            "fields": ["Command", "Name"],
                            "objects": [("Edited", "Args", {"fields": ["Args: >2", "Args: 1>"]})],
                        },
                    )
                ]
            },
        ),
        (
            {"Artifacts": [{"GetterSource": "u"}]},
            {"Artifacts": [{"GetterSource": "v"}]},
            {
                "objects": [
                    (
                        "Edited",
                        "Artifact",
                        {
                            "fields": [
                                *("Chown", "GetterInsecure", "GetterMode"),
                                *("GetterSource: u>v", "RelativeDest"),
                            ]
                        },
                    )
                ]
            },
        ),
    ],
)  # fmt: skip
def test_task_changes_are_listed(old: Document, new: Document, shown: dict[str, Any]) -> None:
    assert of_task(old, new) == shown


def test_second_of_two_artifacts_at_one_destination_is_shown() -> None:
    artifacts = [{"GetterSource": "u"}, {"GetterSource": "v"}]
    shown = of_task({"Artifacts": artifacts[:1]}, {"Artifacts": artifacts})
    assert [(kind, name) for kind, name, _ in shown["objects"]] == [("Added", "Artifact")]


# ---- annotations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "forced"),
    [
        ({"KillTimeout": 1}, "forces in-place update"),
        ({"Constraints": [A]}, "forces in-place update"),
        ({"LogConfig": {"MaxFiles": 2}}, "forces in-place update"),
        ({"LogConfig": {"Disabled": True}}, "forces create/destroy update"),
        ({"User": "nobody"}, "forces create/destroy update"),
        ({"KillTimeout": 1, "Env": {"a": "b"}}, "forces create/destroy update"),
        ({"Config": {"command": "x"}}, "forces create/destroy update"),
    ],
)
def test_diff_of_a_task_shows_the_forced_change(change: Document, forced: str) -> None:
    job_diff = annotate(diff(job(), job(group(task(**change)))), {})
    (changed,) = job_diff.task_groups or []
    assert [task.annotations for task in changed.tasks or ()] == [[forced]]


@pytest.mark.parametrize(("count", "forced"), [(3, ["forces create"]), (1, ["forces destroy"])])
def test_diff_of_a_count_shows_the_forced_change(count: int, forced: list[str]) -> None:
    job_diff = annotate(diff(job(group(Count=2)), job(group(Count=count))), {})
    (changed,) = job_diff.task_groups or []
    assert [field.annotations for field in changed.fields or ()] == [forced]


def test_group_has_the_number_of_allocations_per_update_type() -> None:
    planned = {"web": DesiredUpdates(place=1, migrate=2, stop=3, canary=4, ignore=0)}
    (found,) = annotate(diff(job(), job()), planned).task_groups or []
    assert found.updates == {"create": 1, "migrate": 2, "destroy": 3, "canary": 4}


def test_diff_survives_an_api_round_trip() -> None:
    job_diff = diff(job(), job(group(task(Env={"a": "b"}), Count=2), Meta={"x": "y"}))
    assert msgspec.json.decode(msgspec.json.encode(job_diff), type=JobDiff) == job_diff


# Any values that the `config` of a task can contain, including numbers with hundreds of digits.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers()
    | st.integers(min_value=300, max_value=400).map(lambda digits: 10**digits),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(before=VALUES, after=VALUES)
def test_any_change_of_a_configuration_has_a_diff(before: object, after: object) -> None:
    jobs = [complete(job(group(task(Config={"value": value})))) for value in (before, after)]
    same = diff_jobs(jobs[0], jobs[0])
    assert same is None or same.type == "None"
    diff_jobs(jobs[0], jobs[1])
