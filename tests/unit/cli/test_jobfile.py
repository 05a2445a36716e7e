import json

import pytest

from daemon.cli.core.job_file import VariableArguments, registration
from storage.errors import Invalid

JOB = {"ID": "web", "TaskGroups": []}


@pytest.mark.parametrize(
    ("file", "request_"),
    [
        (JOB, {"Job": JOB}),
        ({"Job": JOB}, {"Job": JOB}),
        ({"job": JOB, "PreserveCounts": True}, {"Job": JOB, "PreserveCounts": True}),
    ],
)
def test_json_file_contains_a_request_or_a_job(file: object, request_: object) -> None:
    assert registration(json.dumps(file), "web.json", VariableArguments()) == {
        **request_,
        "Submission": {"Source": json.dumps(file), "Format": "json"},
    }


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (
            '{\n "ID": web\n}',
            "web.json, line 2, column 8: Expecting value; as JSON, a job file holds",
        ),
        ("", "web.json, line 1, column 1: Expecting value"),
        ("[]", "web.json holds a list, not a job"),
        ('"web"', "web.json holds text, not a job"),
        ("null", "web.json holds null, not a job"),
        ('{"Job": 3}', 'web.json: "Job" holds a number; it must be an object'),
        ('{"Job": true}', 'web.json: "Job" holds a boolean'),
    ],
)
def test_file_without_a_job_is_refused_with_a_position(source: str, complaint: str) -> None:
    with pytest.raises(Invalid) as caught:
        registration(source, "web.json", VariableArguments())
    assert complaint in str(caught.value)
