"""Job files in YAML: the same registration as from JSON, and errors with their position."""

import json
from pathlib import Path

import pytest

from daemon.cli.core.job_file import VariableArguments, registration
from storage.errors import Invalid

API_FORM = """
# a comment
ID: web
Type: batch
Meta: { released: 2026-11-26 }
TaskGroups:
  - Name: main
    Tasks:
      - Name: main
        Driver: raw_exec
        Config:
          command: /bin/echo
          args: [hello, "1"]
"""
LANGUAGE = """
job:
  web:
    type: batch
    group:
      main:
        task:
          main:
            driver: raw_exec
            config: { command: /bin/true }
"""


def read(text: str, name: str = "web.yaml") -> dict[str, object]:
    return registration(text, name, VariableArguments())


@pytest.mark.parametrize("name", ["web.yaml", "web.yml"])
def test_job_in_the_api_form_is_read(name: str) -> None:
    job = read(API_FORM, name)["Job"]
    assert job["ID"] == "web"
    assert job["Meta"] == {"released": "2026-11-26"}
    assert job["TaskGroups"][0]["Tasks"][0]["Config"]["args"] == ["hello", "1"]


def test_job_with_a_wrapper_object_is_read() -> None:
    assert read("Job: { ID: web, TaskGroups: [] }")["Job"] == {"ID": "web", "TaskGroups": []}


def test_submission_is_json_with_the_same_values() -> None:
    request = read(API_FORM)
    submission = request["Submission"]
    assert submission["Format"] == "json"
    assert json.loads(submission["Source"]) == request["Job"]


def test_job_in_the_hcl_form_is_read() -> None:
    job = read(LANGUAGE)["Job"]
    assert (job["ID"], job["TaskGroups"][0]["Tasks"][0]["Driver"]) == ("web", "raw_exec")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ID: [1, 2\nType: batch\n", r"web\.yaml, line 2, column 5: "),
        ("- a\n- b\n", r"web\.yaml holds a list, not a job"),
        ("", r"web\.yaml holds null, not a job"),
        ("ID: !!python/object:os.system {}\n", r"web\.yaml, line 1, column 5: could not determine"),
        ("a: &a [*a]\n", r"web\.yaml cannot be read as YAML: Circular reference"),
        ("---\na: 1\n---\nb: 2\n", r"line 3, column 1: expected a single document .* but found"),
        ("ID: !!binary aGVsbG8=\n", r"line 1, column 5: the type !!binary does not exist in JSON"),
        ("ID: !!set {a, b}\n", r"line 1, column 5: the type !!set does not exist in JSON"),
        ("ID: .nan\n", r"web\.yaml cannot be read as YAML: Out of range float"),
    ],
)
def test_error_names_its_position(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read(text)


@pytest.mark.parametrize("name", ["type", "Type"])
def test_repeated_key_is_refused_with_its_position(name: str) -> None:
    text = f"Job:\n  ID: web\n  {name}: batch\n  Meta: {{a: b}}\n  {name}: service\n"
    with pytest.raises(
        Invalid, match=rf"web\.yaml, line 5, column 3: the key '{name}' is repeated"
    ):
        read(text)


def test_merged_mapping_may_set_its_keys_again() -> None:
    text = "Job:\n  ID: web\n  Meta: &base {a: '1', b: '2'}\n  Other: {<<: *base, a: '3'}\n"
    assert read(text)["Job"]["Other"] == {"a": "3", "b": "2"}


def test_text_of_times_and_keys_stays_as_it_is_in_the_file() -> None:
    text = (
        "ID: web\nMeta: {on: a, 010: b, ~: c, steward_not_before: 22:00,"
        " steward_not_after: 2026-12-24T18:00:00Z, short: 2026-1-2, port: 0x10}\n"
    )
    assert read(text)["Job"]["Meta"] == {
        "on": "a",
        "010": "b",
        "~": "c",
        "steward_not_before": "22:00",
        "steward_not_after": "2026-12-24T18:00:00Z",
        "short": "2026-1-2",
        "port": 16,
    }


def test_aliases_cannot_multiply_the_size_of_a_file() -> None:
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(Invalid, match=r"with its aliases, it has more than 200000 values"):
        read("\n".join(["a0: &a0 [1]", *rows, "ID: *a11"]))


def test_error_about_a_value_shows_no_position_of_the_converted_file() -> None:
    text = LANGUAGE + "        meta: { steward_for_each: [a, b] }\n"
    with pytest.raises(Invalid) as caught:
        read(text)
    assert str(caught.value) == (
        "web.yaml: Unsuitable value type; Unsuitable value: "
        'element "steward_for_each": string required, but have tuple'
    )


def test_file_format_follows_from_the_extension(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        read(API_FORM, str(tmp_path / "web.hcl"))
