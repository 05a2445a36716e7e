"""The keys of jobs that start after others are checked at registration."""

import pytest

from tests.unit.jobspec.build import errors, group, job

REQUIRED = {"MetaRequired": ["day"], "MetaOptional": ["rows"]}


def follower(block: dict[str, object] | None = REQUIRED, **keys: str) -> list[str]:
    meta = {"steward_after": "extract", "steward_after_meta": '{"day": "${meta.day}"}'}
    meta |= {f"steward_{key}": text for key, text in keys.items()}
    kept = {key: text for key, text in meta.items() if text}
    return errors(job(group(), Type="batch", ParameterizedJob=block, Meta=kept))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"after": "a, billing/b, default/team/c", "after_when": "any"},
        {"after_join": "all", "after_key": "day", "after_within": "24h"},
        {"after_meta": '{"day": "${run.job}-${run.number}", "rows": "${output.load[3].rows}"}'},
        {"after_meta": '{"day": "$1 {x} $${y"}'.replace("$${", "$ {")},
    ],
)
def test_follower_key_is_accepted(keys: dict[str, str]) -> None:
    assert follower(**keys) == []


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"after": "a,,b"}, "must be jobs separated by commas, each JOB or NAMESPACE/JOB"),
        ({"after": "/a"}, "must be jobs separated by commas, each JOB or NAMESPACE/JOB"),
        ({"after": "a, a"}, 'names "a" twice'),
        ({"after": ",".join(f"j{n}" for n in range(101))}, "must have at most 100 jobs"),
        ({"after": "x" * 513}, "has a name of more than 512 bytes: "),
        ({"after_when": "never"}, "must be success or failure or any"),
        ({"after_join": "some"}, "must be each or all"),
        ({"after_key": "a b", "after_join": "all"}, "must be the name of a meta key"),
        ({"after_key": "day"}, 'steward_after_key needs steward_after_join = "all"'),
        ({"after_within": "1h"}, 'steward_after_within needs steward_after_join = "all"'),
        ({"after": ""}, "steward_after_meta needs steward_after"),
        ({"after_meta": ""}, 'steward_after_meta lacks "day", which meta_required lists'),
        (
            {"after_meta": '{"day": "x", "hour": "y"}'},
            'steward_after_meta names "hour", which is in neither meta_required nor meta_optional',
        ),
        ({"after_meta": "[" * 60_000}, "must be a JSON object of strings"),
        ({"after_meta": '{"day": 1}'}, "must be a JSON object of strings"),
        ({"after_meta": '{"day": "${env.x}"}'}, 'has "${env.x}" in "day"; write ${meta.NAME}'),
        ({"after_meta": '{"day": "${meta.day"}'}, 'has "${meta.day" in "day"; write ${meta.NAME}'),
        ({"after_meta": '{"day": "' + "x" * 65_536 + '"}'}, "must be at most 65536 bytes long"),
    ],
)
def test_invalid_key_is_an_error(keys: dict[str, str], said: str) -> None:
    assert said in "; ".join(follower(**keys))


def test_a_follower_is_a_parameterized_batch_job_without_a_required_payload() -> None:
    assert follower(None) == ["steward_after needs a parameterized job"]
    assert follower({**REQUIRED, "Payload": "required"}) == [
        "steward_after passes no payload, but the job requires one"
    ]
