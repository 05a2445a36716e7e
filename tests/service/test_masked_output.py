"""Secrets in the output of tasks: masked on every route, except for readers of raw output."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.config.data_directory import alloc_dir
from storage.records.base import SECOND
from tests.service.daemon import Steward, open_steward
from tests.service.test_acl import SECRET, as_, new_token

PHRASE = "correct horse battery"
MASK = "‹masked*********›"
READS = 'P="{{ with nomadVar `nomad/jobs/talks` }}{{ .phrase }}{{ end }}"\n'
TALKS = {
    "ID": "talks",
    "Type": "batch",
    "TaskGroups": [
        {
            "Name": "web",
            "Tasks": [
                {
                    "Name": "main",
                    "Driver": "raw_exec",
                    "Config": {
                        "command": "/bin/sh",
                        "args": ["-c", 'echo "phrase $P"; printf "$P" | base64; exec sleep 600'],
                    },
                    "KillTimeout": SECOND,
                    "Templates": [
                        {"EmbeddedTmpl": READS, "DestPath": "secrets/e", "Envvars": True}
                    ],
                }
            ],
        }
    ],
}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        yield steward


async def talking(steward: Steward) -> str:
    """Run the task and return its allocation, once it has printed its secret."""
    await steward.post("/v1/var/nomad/jobs/talks", {"Items": {"phrase": PHRASE}})
    (found,) = await steward.run_job(TALKS)
    encoded = base64.b64encode(PHRASE.encode()).decode()
    while encoded not in await steward.log_of(found["ID"], "main"):
        pass
    return str(found["ID"])


def routes(alloc_id: str) -> list[str]:
    """Return the API paths that show the output of an allocation."""
    return [
        f"/v1/client/fs/logs/{alloc_id}?task=main&type=stdout&plain=true",
        f"/v1/client/fs/logs/{alloc_id}?task=main&type=stdout&plain=true&origin=end&offset=40",
        f"/v1/client/fs/lines/{alloc_id}?task=main",
        f"/v1/client/fs/cat/{alloc_id}?path=alloc/logs/main.stdout.0",
        f"/v1/client/fs/readat/{alloc_id}?path=alloc/logs/main.stdout.0&offset=10&limit=15",
        f"/v1/client/fs/search/{alloc_id}?task=main&contains=phrase",
        "/v1/job/talks/logs",
        "/v1/job/talks/logs/lines",
        "/v1/job/talks/logs/search?contains=phrase",
    ]


async def test_every_route_masks_the_secrets_of_tasks(guarded: Steward) -> None:
    alloc_id = await talking(guarded)
    rules = 'namespace "default" { policy = "write" }'
    reader = await new_token(guarded, rules)
    raw = await new_token(
        guarded, 'namespace "default" { policy = "write" capabilities = ["read-raw-logs"] }', "raw"
    )
    encoded = base64.b64encode(PHRASE.encode()).decode()
    for route in routes(alloc_id):
        answer = await as_(guarded, reader, "GET", route)
        plain = await as_(guarded, raw, "GET", route)
        assert answer.status_code == plain.status_code == 200, route
        assert len(answer.content) == len(plain.content), route
        assert "horse" not in answer.text, route
        assert encoded[:-4] not in answer.text, route
        assert "masked" in answer.text, route
        assert "horse" in plain.text or encoded[:-4] in plain.text, route
    file = alloc_dir(guarded.data_dir) / alloc_id / "alloc/logs/main.stdout.0"
    assert PHRASE in file.read_text()
    response = await as_(guarded, reader, "GET", f"{routes(alloc_id)[5]}+correct")
    assert response.json()["Lines"] == []


async def test_masks_remain_after_a_kill_and_a_change_of_the_variable(guarded: Steward) -> None:
    alloc_id = await talking(guarded)
    reader = await new_token(guarded, 'namespace "default" { policy = "write" }')
    await guarded.post("/v1/var/nomad/jobs/talks", {"Items": {"phrase": "tr0ub4dor and 3"}})
    await guarded.kill_and_restart()
    answer = await as_(guarded, reader, "GET", routes(alloc_id)[0])
    assert answer.text.startswith(f"phrase {MASK}\n")
    assert PHRASE.encode() not in guarded.log.read_bytes()


async def test_nothing_is_masked_without_access_control(steward: Steward) -> None:
    alloc_id = await talking(steward)
    assert (await steward.request("GET", routes(alloc_id)[0])).text.startswith(f"phrase {PHRASE}\n")


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"Job": {"ID": "a", "Meta": {"k": "x ‹masked**›"}}}, "Job.Meta.k"),
        ({"Job": {"ID": "a", "TaskGroups": [{"Name": "‹**›"}]}}, "Job.TaskGroups[0].Name"),
        ({"Job": {"ID": "a"}, "Submission": {"Source": "‹masked›"}}, "Submission.Source"),
    ],
)
async def test_registration_that_contains_a_mask_is_refused(
    steward: Steward, part: dict[str, object], field: str
) -> None:
    answer = await steward.request("POST", "/v1/jobs", part)
    assert answer.status_code == 400
    assert answer.text.startswith(f"{field} has a mask (‹masked›) in place of a secret")
    assert (await steward.request("GET", "/v1/job/a")).status_code == 404


async def test_quotes_similar_to_a_mask_are_no_masks(steward: Steward) -> None:
    job = {**TALKS, "ID": "quotes", "Meta": {"k": "‹quoted› ‹›, ‹*›"}, "TaskGroups": []}
    answer = await steward.request("POST", "/v1/jobs", {"Job": job})
    assert "mask" not in answer.text
