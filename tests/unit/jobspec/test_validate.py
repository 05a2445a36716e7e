"""Validation of a whole job: one text for all errors, and errors that concern several blocks."""

from typing import Any

import msgspec
import pytest

from daemon.jobspec.validate import ValidationResult, scaling_refusal, transition_error, validate
from storage.records.codec import Document
from storage.records.job import Job
from tests.unit.jobspec.build import complete, errors, group, job, task
from tests.unit.jobspec.recorded import document

PERIODIC = {"Type": "batch", "Periodic": {"Spec": "@daily"}}
PARAMETERIZED = {"Type": "batch", "ParameterizedJob": {}}


# ---- findings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "error", "warnings"),
    [
        (ValidationResult(), "", ""),
        (ValidationResult(errors=("a",)), "1 error occurred:\n\t* a\n\n", ""),
        (ValidationResult(errors=("a", "b")), "2 errors occurred:\n\t* a\n\t* b\n\n", ""),
        (ValidationResult(remarks=("a",)), "", "1 warning:\n\n* a"),
        (ValidationResult(remarks=("a", "b\n\n")), "", "2 warnings:\n\n* a\n* b"),
    ],
)
def test_all_errors_are_reported_together(
    found: ValidationResult, error: str, warnings: str
) -> None:
    assert (found.error, found.warnings) == (error, warnings)


def test_callers_can_add_errors_to_the_result() -> None:
    validation_result = ValidationResult(errors=("b",), remarks=("r",))
    assert validation_result.after("a").errors == ("a", "b")
    assert validation_result.with_warnings("s").warnings == "2 warnings:\n\n* r\n* s"
    assert validation_result.remarks == ("r",)


def test_valid_job_has_no_errors() -> None:
    assert validate(complete(job())) == ValidationResult()


# ---- refused before and after -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (job(group(Scaling={"Max": 1}), Type="system"), True),
        (job(group(), group(Scaling={}), Type="system"), True),
        (job(group(Scaling=None), Type="system"), False),
        (job(group(Scaling={"Max": 1}), Type="service"), False),
        (job(group(Scaling={"Max": 1})), False),
        ({"ID": "g", "Type": "system"}, False),
    ],
)
def test_a_system_job_cannot_be_scaled(given: Document, refused: bool) -> None:
    text = "Task groups with job type system do not support scaling blocks"
    assert scaling_refusal(document(given)) == (text if refused else None)


def dispatched(job: Job) -> Job:
    return msgspec.structs.replace(job, dispatched=True)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (job(), job(Priority=70), None),
        (job(), job(Type="batch"), 'cannot update job from type "service" to "batch"'),
        (
            job(**PERIODIC),
            job(Type="batch"),
            "cannot update periodic job to being non-periodic",
        ),
        (
            job(Type="batch"),
            job(**PERIODIC),
            "cannot update non-periodic job to being periodic",
        ),
        (
            job(**PARAMETERIZED),
            job(Type="batch"),
            "cannot update parameterized job to being non-parameterized",
        ),
        (
            job(Type="batch"),
            job(**PARAMETERIZED),
            "cannot update non-parameterized job to being parameterized",
        ),
        (job(**PERIODIC), job(**PERIODIC), None),
        (job(**PARAMETERIZED), job(**PARAMETERIZED), None),
    ],
)
def test_job_type_cannot_be_changed(before: Document, after: Document, problem: str | None) -> None:
    assert transition_error(complete(before), complete(after)) == problem


def test_dispatched_flag_cannot_be_changed() -> None:
    one = complete(job(Type="batch"))
    assert transition_error(one, dispatched(one)) == "field 'Dispatched' is read-only"
    assert transition_error(dispatched(one), dispatched(one)) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (job(Type="_core"), "job type cannot be core"),
        (job(Payload="eA=="), "job can't be submitted with a payload, only dispatched"),
        (job(Priority=-1), "job priority must be between [1, 100]"),
        (job(Priority=101), "job priority must be between [1, 100]"),
        (
            job(group(task(Resources={"NUMA": {"Affinity": "require"}}))),
            "numa scheduling requires Nomad Enterprise",
        ),
        (
            job(group(task(Schedule={"Cron": {"Start": "0 8 * * *"}}))),
            "task schedules requires Nomad Enterprise",
        ),
        (
            job(group(Consul={"Cluster": "other"})),
            "non-default Consul cluster requires Nomad Enterprise",
        ),
        (
            job(group(task(Consul={"Cluster": "other"}))),
            "non-default Consul cluster requires Nomad Enterprise",
        ),
        (
            job(group(Services=[{"Name": "s", "Cluster": "other"}])),
            "non-default Consul cluster requires Nomad Enterprise",
        ),
        (
            job(group(task(Consul={"Partition": "b"}), Consul={"Partition": "a"})),
            'task.consul.partition "b" must match group.consul.partition "a" if both are set',
        ),
    ],
)
def test_unsupported_job_is_refused(given: Document, text: str) -> None:
    assert errors(given) == [text]


@pytest.mark.parametrize(
    "given",
    [
        job(Priority=100),
        job(group(task(Resources={"NUMA": {"Affinity": "none"}}))),
        job(group(task(Consul={"Partition": "a"}), Consul={"Partition": "a"})),
        job(group(task(Consul={"Partition": "a"}))),
        job(group(Consul={"Namespace": "other"})),
        job(group(Services=[{"Name": "s", "Provider": "nomad", "Cluster": "other"}])),
    ],
)
def test_supported_features_are_not_refused(given: Document) -> None:
    assert errors(given) == []


def test_vault_block_needs_a_configured_vault_api() -> None:
    asking = complete(job(group(task(Vault={"Role": "r"}))))
    assert validate(asking) == ValidationResult()
    elsewhere = complete(job(group(task(Vault={"Cluster": "other"}))))
    assert validate(elsewhere).errors == ('Vault "other" not enabled but used in the job',)


# ---- warnings -----------------------------------------------------------------------------------


def in_group(*texts: str) -> list[str]:
    head = "1 error" if len(texts) == 1 else f"{len(texts)} errors"
    points = "".join(f"\n\t* {text}" for text in texts)
    return [f'Group "web" has warnings: {head} occurred:{points}\n\n']


def in_task(*texts: str) -> list[str]:
    (inner,) = in_group(*texts)
    return in_group(inner.replace('Group "web"', 'Task "main"'))


SERVICE = {"Name": "s", "Provider": "nomad", "PortLabel": "http"}
HTTP = [{"DynamicPorts": [{"Label": "http"}]}]
NO_AUDIENCE = "identities without an audience are insecure"
NO_EXPIRATION = "identities without an expiration are insecure"


@pytest.mark.parametrize(
    ("given", "remarks"),
    [
        (
            job(group(Count=2, Update={"MaxParallel": 3})),
            in_group(
                "Update max parallel count is greater than task group count (3 > 2). A destructive "
                "change would result in the simultaneous replacement of all allocations."
            ),
        ),
        (job(group(Count=3, Update={"MaxParallel": 3})), []),
        (job(group(Count=1, Update={"MaxParallel": 3})), []),
        (
            job(group(Networks=[{"MBits": 1}])),
            in_group(
                "mbits has been deprecated as of Nomad 0.12.0. "
                "Please remove mbits from the network block"
            ),
        ),
        (
            job(group(task(Resources={"IOPS": 1}))),
            in_task(
                "IOPS has been deprecated as of Nomad 0.9.0. "
                "Please remove IOPS from resource block."
            ),
        ),
        (
            job(group(task(Resources={"Networks": [{"Mode": "host"}]}))),
            in_task(
                "task network resources have been deprecated as of Nomad 0.12.0. "
                "Please configure networking via group network block."
            ),
        ),
        (
            job(
                group(
                    task(
                        Templates=[{"EmbeddedTmpl": "a", "DestPath": "b", "VaultGrace": 1}],
                    )
                )
            ),
            in_task(
                "Template[0] VaultGrace has been deprecated as of Nomad 0.11 and ignored since "
                "Vault 0.5. Please remove VaultGrace / vault_grace from template block."
            ),
        ),
        (
            job(group(task(Templates=[{"EmbeddedTmpl": "{{ toYml 1 }}", "DestPath": "b"}]))),
            in_task(
                'Template[0] cannot be rendered: data (EmbeddedTmpl): line 1: function "toYml" '
                'not defined; did you mean "toYAML"?'
            ),
        ),
        (
            job(
                group(
                    task(
                        Templates=[
                            {
                                "EmbeddedTmpl": "{{ toYml }}<< if >>",
                                "DestPath": "b",
                                "LeftDelim": "<<",
                                "RightDelim": ">>",
                            },
                        ]
                    )
                )
            ),
            in_task(
                "Template[0] cannot be rendered: data (EmbeddedTmpl): line 1: missing value for if"
            ),
        ),
        (
            job(group(task(Identities=[{"Name": "a"}]))),
            in_task(
                f"2 errors occurred:\n\t* Identity[a] {NO_AUDIENCE}\n\t* Identity[a] "
                f"{NO_EXPIRATION}\n\n"
            ),
        ),
        (
            job(group(task(Identities=[{"Name": "a", "Audience": ["x", "y"], "TTL": 1}]))),
            in_task(
                "1 error occurred:\n\t* Identity[a] while multiple audiences is allowed, it is "
                "more secure to use 1 audience per identity\n\n"
            ),
        ),
        (
            job(group(task(Identities=[{"Name": "a", "Audience": ["x"], "TTL": 1, "Env": True}]))),
            in_task(
                '1 error occurred:\n\t* Identity[a] using env=true without change_mode="restart" '
                "may result in task not getting updated identity\n\n"
            ),
        ),
        (
            job(
                group(
                    task(
                        Identities=[
                            {
                                "Name": "a",
                                "Audience": ["x"],
                                "TTL": 1,
                                "Env": True,
                                "ChangeMode": "restart",
                            }
                        ]
                    )
                )
            ),
            [],
        ),
        (
            job(group(task(Identities=[{"Name": "vault_x", "Audience": ["a"], "TTL": 1}]))),
            ["Task main has an identity called vault_x but no vault block"],
        ),
        (
            job(Type="batch", Periodic={"Spec": "@daily"}),
            ["cron is deprecated and may be removed in a future release. Use crons instead"],
        ),
        (job(Type="batch", Periodic={"Specs": ["@daily"]}), []),
        (
            job(
                group(Update={"Canary": 1, "AutoPromote": True}),
                group(Name="two", Update={"Canary": 1}),
            ),
            ["auto_promote must be true for all groups to enable automatic promotion"],
        ),
        (job(group(Update={"Canary": 1, "AutoPromote": True}), group(Name="two")), []),
        (
            job(group(Services=[SERVICE], Networks=HTTP)),
            [
                'group "web" defines services, but neither the group nor any of its tasks have '
                "shutdown_delay set"
            ],
        ),
        (job(group(Services=[SERVICE], Networks=HTTP, ShutdownDelay=1)), []),
        (job(group(task(ShutdownDelay=1), Services=[SERVICE], Networks=HTTP)), []),
        (
            job(group(task(Services=[SERVICE]), Networks=HTTP)),
            ['task "main" in group "web" defines services, but has no shutdown_delay set'],
        ),
        (
            job(group(Services=[{**SERVICE, "TaskName": "main"}], Networks=HTTP)),
            [
                'group "web" references task "main" in a service definition, but the task has no '
                "shutdown_delay set"
            ],
        ),
        (
            job(group(task(Resources={"MemoryMaxMB": 900}))),
            [
                'Memory oversubscription is not enabled; Task "web.main" memory_max value will be '
                "ignored. Update the Scheduler Configuration to allow oversubscription."
            ],
        ),
    ],
)
def test_suspicious_setting_gets_a_warning(given: Document, remarks: list[str]) -> None:
    found = validate(complete(given))
    assert (list(found.remarks), found.errors) == (remarks, ())


def test_memory_max_is_accepted_with_oversubscription() -> None:
    asking = complete(job(group(task(Resources={"MemoryMaxMB": 900}))))
    assert validate(asking, oversubscription=True) == ValidationResult()


def test_service_identity_is_validated() -> None:
    identity = {"Name": "i", "Audience": ["a", "b"], "TTL": 1}
    found = validate(complete(job(group(Services=[{"Name": "s", "Identity": identity}]))))
    assert (
        found.remarks[0]
        == in_group(
            'Service "s": while multiple audiences is allowed, it is more secure to use 1 audience per '
            "identity"
        )[0]
    )


# ---- launches ------------------------------------------------------------------------------------


def periodic(*specs: str, **fields: Any) -> Document:
    return job(Type="batch", Periodic={"Specs": list(specs)}, **fields)


@pytest.mark.parametrize(
    ("given", "remarks"),
    [
        (periodic("* * * * *", "30 2 * * *"), []),
        (
            periodic("* * * * *", "30 0 * * * * *"),
            ["its crons together have launches only 30 s apart"],
        ),
        (periodic("0 0 31 2 *"), ['cron "0 0 31 2 *" has no launches: no date matches it']),
        (periodic("0 0 29 2 *"), []),
        (periodic("*/10 0 0 * * * *"), ['cron "*/10 0 0 * * * *" has launches only 10 s apart']),
        (periodic("0,59 * * * * * *"), ['cron "0,59 * * * * * *" has launches only 1 s apart']),
        (periodic("* * * * * * *", Meta={"steward_frequent_launches": "true"}), []),
        (periodic("nonsense"), []),
    ],
)
def test_launches_within_a_minute_get_a_warning(given: Document, remarks: list[str]) -> None:
    assert list(validate(complete(given)).remarks) == remarks


def test_only_the_text_of_a_limited_number_of_templates_is_parsed() -> None:
    known = [{"EmbeddedTmpl": "{{ 1 }}" * 500, "DestPath": str(number)} for number in range(9)]
    wrong = {"EmbeddedTmpl": "{{ nope }}", "DestPath": "b"}
    at_run_time = {"SourcePath": "local/t", "DestPath": "c"}
    for templates, number in (
        ([*known, wrong], 1),
        ([*known, {**wrong, "EmbeddedTmpl": "{{ nope }}" + " " * 2000}], 0),
        ([at_run_time], 0),
    ):
        given = complete(job(group(task(Templates=templates))))
        assert len(validate(given).remarks) == number
