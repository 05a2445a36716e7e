"""Errors that the CLI reports with their position before it contacts the daemon."""

import pytest

from daemon.cli.core.job_check import check
from storage.errors import Invalid

TEXT = 'job "a" {\n  group "full" {\n    task "t" {}\n  }\n  group "bare" {\n  }\n}\n'
FULL = {"Name": "full", "Tasks": [{"Name": "t"}]}


def complaint(job: object, text: str = "") -> str:
    with pytest.raises(Invalid) as raised:
        check(job, "a.hcl", text)
    return str(raised.value)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("61 * * * *", "'61' in the minute field is not allowed: write 0-59, *"),
        ("* 24 * * *", "'24' in the hour field is not allowed: write 0-23, *"),
        ("* * 0 * *", "'0' in the day-of-month field is not allowed: write 1-31, *"),
        ("* * * 13 *", "'13' in the month field is not allowed: write 1-12 or january, "),
        ("* * * * 9", "'9' in the day-of-week field is not allowed: write 0-6 or sunday, "),
    ],
)
def test_a_schedule_out_of_range_names_field_value_and_range(spec: str, told: str) -> None:
    assert complaint({"Periodic": {"Specs": ["@daily", spec]}}).startswith(
        f'a.hcl: periodic "{spec}": {told}'
    )
    assert told in complaint({"Periodic": {"Spec": spec}})


def test_group_without_a_task_is_located_in_the_file() -> None:
    said = complaint({"TaskGroups": [FULL, {"Name": "bare", "Tasks": None}]}, TEXT)
    assert said.splitlines()[0].startswith('a.hcl:5,3-8: Group "bare" has no task; ')
    assert said.splitlines()[1] == '  5 |   group "bare" {'


@pytest.mark.parametrize(
    "job",
    [
        {"TaskGroups": [FULL], "Periodic": {"Spec": "*/5 * * * *"}},
        {"TaskGroups": [{"Name": "bare"}]},  # its position is not known
        {"TaskGroups": "none"},  # the daemon has a better message
        {"Periodic": {"Spec": "nonsense"}},
        {},
        None,
    ],
)
def test_error_without_a_position_is_left_to_the_daemon(job: object) -> None:
    check(job, "a.hcl")


def test_group_from_a_dynamic_block_is_left_to_the_daemon() -> None:
    text = 'job "a" {\n  dynamic "group" {\n    for_each = ["bare"]\n    content {}\n  }\n}\n'
    check({"TaskGroups": [{"Name": "bare"}]}, "a.hcl", text)
