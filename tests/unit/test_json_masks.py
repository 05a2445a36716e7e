"""Masks of the secrets of jobs in JSON: only in texts, and only of the job that a text belongs to."""

import json
from typing import Any

import pytest

from daemon.text.json_masks import JobKey, mask_json, named_jobs
from daemon.variables.task_secrets import matcher_of

MINE, OTHER = ("default", "mine"), ("default", "other")
MASKED = "‹*"


def shown(document: Any, secrets: dict[JobKey, list[str]], job: JobKey | None = None) -> Any:
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    matchers = {key: matcher_of(values) for key, values in secrets.items()}
    return json.loads(mask_json(data, matchers, job))


def job_of(key: JobKey, **env: str) -> dict[str, Any]:
    return {
        "ID": key[1],
        "TaskGroups": [{"Tasks": [{"Env": env, "Config": {"args": [*env.values()]}}]}],
        "ModifyIndex": 12345678,
        "Namespace": key[0],
    }


@pytest.mark.parametrize("key", ["Job", "TaskGroups", "Key"])
def test_texts_of_a_job_are_masked_at_any_depth(key: str) -> None:
    found = shown({key: [job_of(MINE, LOGIN="user:my password")]}, {MINE: ["my password"]})
    (task,) = found[key][0]["TaskGroups"][0]["Tasks"]
    assert task["Env"]["LOGIN"].startswith("user:" + MASKED)
    assert task["Config"]["args"][0].startswith("user:" + MASKED)


@pytest.mark.parametrize(
    "secret", ['"ModifyIndex":', "ModifyIndex", "12345678", '}],"ModifyIndex"']
)
def test_syntax_keys_and_numbers_are_not_masked(secret: str) -> None:
    document = job_of(MINE, LOGIN="user")
    assert shown(document, {MINE: [secret]}) == document


@pytest.mark.parametrize("secret", ["namespace1", "the-job-id"])
def test_names_needed_by_clients_are_not_masked(secret: str) -> None:
    key = ("namespace1", "the-job-id")
    document = {"Allocation": {"Namespace": key[0], "JobID": key[1], "Job": job_of(key)}}
    assert shown(document, {key: [secret]}) == document


def test_task_variables_can_have_such_names() -> None:
    env = {"ID": "my password", "Namespace": "my password", "JobID": "my password"}
    assert "my password" not in json.dumps(shown(job_of(MINE, **env), {MINE: ["my password"]}))


def test_secrets_of_another_job_are_not_masked() -> None:
    document = [job_of(MINE, A="my password"), job_of(OTHER, A="my password"), {"A": "my password"}]
    found = shown(document, {OTHER: ["my password"]})
    assert found[0] == document[0]
    assert found[1] != document[1]
    assert found[2] == document[2]


def test_job_cannot_name_another_job_inside() -> None:
    guess = job_of(OTHER, A="my password")
    document = {
        **job_of(MINE),
        "Meta": {"Namespace": "default", "JobID": "other", "A": "my password"},
    }
    document["TaskGroups"].append(guess)
    assert shown(document, {OTHER: ["my password"]}) == document
    node = {"Meta": {"Namespace": "default", "JobID": "other", "A": "my password"}}
    assert shown(node, {OTHER: ["my password"]}) == node


def test_document_about_a_job_has_the_secrets_of_the_job() -> None:
    document = {"Source": "password = my password", "Diff": [{"Fields": ["my password"]}]}
    assert shown(document, {MINE: ["my password"]}) == document
    assert "my password" not in json.dumps(shown(document, {MINE: ["my password"]}, MINE))


def test_children_share_the_secrets_of_their_parent() -> None:
    document = job_of(("default", "mine/dispatch-1-2"), A="my password")
    assert "my password" not in json.dumps(shown(document, {MINE: ["my password"]}))


@pytest.mark.parametrize(
    ("text", "secret"),
    [("line\nabcdefgh", "nabcdefgh"), ("\tquoted", "tquoted" + "x"), ('a "b" c d e', '"b" c d e')],
)
def test_escapes_remain_valid(text: str, secret: str) -> None:
    found = shown(job_of(MINE, A=text), {MINE: [secret]})["TaskGroups"][0]["Tasks"][0]["Env"]["A"]
    assert (secret in text) is (found != text)


def test_document_chunks_are_masked() -> None:
    piece = b'"x":"y"}],' + json.dumps(job_of(MINE, A="my password")).encode() + b",["
    masked = mask_json(piece, {MINE: matcher_of(["my password"])})
    assert len(masked) == len(piece)
    assert b"my password" not in masked
    assert masked.endswith(b",[")


def test_jobs_in_a_document_are_found() -> None:
    assert named_jobs(b'{"ID":"a","JobID" : "b\\"c","EvalID":"d","ID":1,"x":"ID"}') == {"a", 'b"c'}
    assert named_jobs(b'"ID":"a') == set()
