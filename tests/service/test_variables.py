"""Variables over the API: locks, lists and conflicts as a client sees them."""

from pathlib import Path

import trio

from tests.service.daemon import Steward, open_steward

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test
READER = 'namespace "default" { variables { path "*" { capabilities = ["read", "list"] } } }'


async def test_a_lock_is_shown_to_readers_without_its_id(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        await steward.request("POST", "/v1/acl/policy/p", {"Name": "p", "Rules": READER})
        token = await steward.post("/v1/acl/token", {"Type": "client", "Policies": ["p"]})
        wanted = {"Items": {"a": "1"}, "Lock": {"TTL": "20s", "LockDelay": 0}}
        taken = await steward.post("/v1/var/app", wanted, **{"lock-acquire": ""})
        assert taken["Lock"] == {"ID": taken["Lock"]["ID"], "TTL": "20s", "LockDelay": "15s"}
        steward.token = token["SecretID"]
        shown = await steward.get("/v1/var/app")
        assert shown["Lock"] == {"TTL": "20s", "LockDelay": "15s"}
        assert [item["Lock"] for item in await steward.get("/v1/vars")] == [shown["Lock"]]


async def test_concurrent_writers_never_both_hold_a_lock(steward: Steward) -> None:
    path, lock = "/v1/var/app", {"Items": {"a": "1"}, "Lock": {"TTL": "15s"}}
    assert (await steward.request("PUT", path, lock)).status_code == 400
    assert (await steward.request("GET", path)).status_code == 404
    assert (await steward.request("PUT", path, lock, **{"lock-acquire": ""})).status_code == 200
    assert (await steward.request("PUT", path, lock, **{"lock-acquire": ""})).status_code == 409


async def test_invalid_lock_operations_are_refused(steward: Steward) -> None:
    path, body = "/v1/var/app", {"Items": {"a": "1"}}
    acquire = {"lock-acquire": ""}
    for query, more, words in [
        ({}, {"Lock": {}}, "variable should not contain lock definition"),
        ({"lock-release": ""}, {"Items": None}, "missing lock ID"),
        ({"lock-acquire": "", "lock-release": ""}, {}, "multiple lock operations"),
        ({"lock-renew": "", "cas": "0"}, {}, "CAS can't be used"),
        (acquire, {"Lock": {"TTL": "1s"}}, "between 10 seconds and 24 hours"),
        (acquire, {"Lock": {"LockDelay": "9999h"}}, "between 0 seconds and 1 year"),
        (acquire, {"Lock": {"LockDelay": -1}}, "between 0 seconds and 1 year"),
        (acquire, {"Lock": {"TTL": "soon"}}, 'time: invalid duration "soon"'),
        (acquire, {"Lock": {"TTL": True}}, "TTL True is not a duration"),
        ({"cas": "x"}, {}, 'can not parse cas: strconv.ParseUint: parsing "x"'),
        ({"cas": "-1"}, {}, "can not parse cas"),
    ]:
        answer = await steward.request("PUT", path, {**body, **more}, **query)
        assert answer.status_code == 400, answer.text
        assert words in answer.text


async def test_lists_show_no_values_and_can_be_filtered(steward: Steward) -> None:
    await steward.request("PUT", "/v1/namespace/ops", {"Name": "ops"})
    for namespace, path in [("default", "a/1"), ("default", "b/2"), ("ops", "a/3")]:
        await steward.post(f"/v1/var/{path}", {"Items": {"k": "hidden"}}, namespace=namespace)

    async def paths(**query: object) -> list[str]:
        answer = await steward.request("GET", "/v1/vars", **query)
        assert "hidden" not in answer.text
        return [item["Path"] for item in answer.json()]

    assert await paths() == ["a/1", "b/2"]
    assert await paths(namespace="*") == ["a/1", "b/2", "a/3"]
    assert await paths(namespace="*", prefix="a/") == ["a/1", "a/3"]
    assert await paths(namespace="*", filter='Namespace == "ops"') == ["a/3"]
    assert await paths(per_page=1, next_token="default.b/2") == ["b/2"]


async def test_a_reader_is_woken_by_a_change(steward: Steward) -> None:
    made = await steward.post("/v1/var/app", {"Items": {"k": "1"}})
    seen = []

    async def watch() -> None:
        index = made["ModifyIndex"]
        seen.append(await steward.get("/v1/var/app", index=index, wait="60s"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await steward.post("/v1/var/other", {"Items": {"k": "1"}})
        await steward.post("/v1/var/app", {"Items": {"k": "2"}})
    assert seen[0]["Items"] == {"k": "2"}


async def test_namespace_with_variables_is_not_deleted(steward: Steward) -> None:
    await steward.request("PUT", "/v1/namespace/ops", {"Name": "ops"})
    await steward.post("/v1/var/a", {"Items": {"k": "v"}}, namespace="ops")
    refused = await steward.request("DELETE", "/v1/namespace/ops")
    assert "has variables in regions: [global]" in refused.text
    await steward.request("DELETE", "/v1/var/a", namespace="ops")
    assert (await steward.request("DELETE", "/v1/namespace/ops")).status_code == 200


async def test_values_survive_a_crash_and_are_never_stored_in_plain_text(steward: Steward) -> None:
    await steward.post("/v1/var/app", {"Items": {"phrase": "a-value-to-look-for"}})
    await steward.kill_and_restart()
    assert (await steward.get("/v1/var/app"))["Items"]["phrase"] == "a-value-to-look-for"
    await steward.stop()
    kept = [path for path in steward.data_dir.rglob("*") if path.is_file()]
    assert [path for path in kept if b"a-value-to-look-for" in path.read_bytes()] == []
    assert "a-value-to-look-for" not in steward.log.read_text()
