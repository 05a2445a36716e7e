"""Steward's own keys in meta are checked like fields."""

import pytest

from daemon.jobspec.steward_meta.job_keys import FREQUENT_LAUNCHES
from storage.records.codec import Document
from tests.unit.jobspec.build import errors, group, job, task

KEY = FREQUENT_LAUNCHES.name


@pytest.mark.parametrize("text", ["true", "false"])
def test_known_key_in_the_right_block_is_accepted(text: str) -> None:
    assert errors(job(Meta={KEY: text, "owner": "steward_team", "Steward_x": "y"})) == []


@pytest.mark.parametrize(
    "meta",
    [
        {"steward_notify_webhook": "http://127.0.0.1:8080/hook?key=1"},
        {"steward_notify_command": "mail", "steward_notify": "failure, late"},
        {"steward_notify_to": "night, chat"},
    ],
)
def test_notification_settings_are_accepted(meta: dict[str, str]) -> None:
    assert errors(job(Meta=meta)) == []


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "https:///x",
        "x.example",
        "https://x.example:99999/",
        "https://x.example/a b",
        "https://x.example/\r\nX: y",
        "https://x.example/#x",
        "https://[::1/",
        "https://x.example/" + "x" * 2000,
    ],
)
def test_invalid_address_is_refused(url: str) -> None:
    (said,) = errors(job(Meta={"steward_notify_webhook": url}))
    assert (
        said.startswith('Meta of job: "steward_notify_webhook" is "https:') or "x.example" in said
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            job(Meta={"steward_frequent_lunches": "true"}),
            'Meta of job: unknown key "steward_frequent_lunches"; '
            'did you mean "steward_frequent_launches"?',
        ),
        (
            job(Meta={"Steward_Frequent_Launches": "true"}),
            'Meta of job: unknown key "Steward_Frequent_Launches"; '
            'did you mean "steward_frequent_launches"?',
        ),
        (
            job(group(Meta={KEY: "true"})),
            f'Meta of task group "web": "{KEY}" belongs in the meta of a job',
        ),
        (
            job(group(task(Meta={KEY: "true"}))),
            f'Meta of task "main": "{KEY}" belongs in the meta of a job',
        ),
        (job(Meta={KEY: "yes"}), f'Meta of job: "{KEY}" is "yes", must be true or false'),
        (
            job(Meta={"steward_catch_up": "some"}),
            'Meta of job: "steward_catch_up" is "some", must be none or last or all',
        ),
        (
            job(Meta={"steward_catch_up_most": "1001"}),
            'Meta of job: "steward_catch_up_most" is "1001", must be from 1 to 1000',
        ),
        (
            job(Meta={"steward_catch_up_most": "-1"}),
            'Meta of job: "steward_catch_up_most" is "-1", must be a whole number from 1 to 1000',
        ),
        (
            job(Meta={"steward_notify_webhook": "https://x.example/", "steward_notify": "fail"}),
            'Meta of job: "steward_notify" is "fail", '
            "must be one or more of failure, recovery, missed, late, approval",
        ),
        (
            job(Meta={"steward_notify": "failure"}),
            'Meta of job: "steward_notify" has no receiver; add "steward_notify_to" or '
            '"steward_notify_webhook" or "steward_notify_command"',
        ),
        (
            job(Meta={"steward_notify_webhook": "ftp://x.example/"}),
            'Meta of job: "steward_notify_webhook" is "ftp://x.example/", '
            "must be an address like https://HOST/PATH",
        ),
        (
            job(Meta={"steward_notify_webhook": "https://me@x.example/"}),
            'Meta of job: "steward_notify_webhook" is "https://me@x.example/", '
            "must have neither a user nor a fragment after #",
        ),
        (
            job(Meta={"steward_notify_command": "/bin/sh -c x"}),
            'Meta of job: "steward_notify_command" is "/bin/sh -c x", must be the name of a '
            "command in notify_commands in the daemon's configuration, and may contain letters, "
            "digits, - and _",
        ),
        (
            job(Meta={"steward_notify_to": "night,"}),
            'Meta of job: "steward_notify_to" is "night,", must be 1 to 8 receiver names, separated '
            "by commas. Each must be defined in notify_receivers in the daemon's configuration, and "
            "may contain letters, digits, - and _",
        ),
        (
            job(Meta={"steward_jitter": "25h"}),
            'Meta of job: "steward_jitter" is "25h", must be from 0s to 24h0m0s',
        ),
        (
            job(Meta={"steward_jitter": "soon"}),
            'Meta of job: "steward_jitter" is "soon", time: invalid duration "soon": '
            "must be a duration like 30s or 1h",
        ),
    ],
)
def test_key_without_a_meaning_is_an_error(given: Document, said: str) -> None:
    assert errors(given) == [said]


@pytest.mark.parametrize(
    ("meta", "value"),
    [(None, False), ({}, False), ({KEY: "true"}, True), ({KEY: "nonsense"}, False)],
)
def test_value_of_a_key_is_read_from_meta(meta: dict[str, str] | None, *, value: bool) -> None:
    assert FREQUENT_LAUNCHES.of(meta) is value
