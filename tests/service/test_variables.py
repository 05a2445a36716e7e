"""Variables from outside: what a client sees of locks, lists and conflicts."""

import json

import trio

from tests.service.daemon import Steward


async def test_a_lock_is_shown_to_its_holder_alone(steward: Steward) -> None:
    wanted = {"Items": {"a": "1"}, "Lock": {"TTL": "20s", "LockDelay": 0}}
    path = "/v1/var/app"
    taken = await steward.post(path, wanted, **{"lock-operation": "acquire"})
    assert taken["Lock"] == {"ID": taken["Lock"]["ID"], "TTL": "20s", "LockDelay": "15s"}
    shown = await steward.get(path)
    assert shown["Lock"] == {"TTL": "20s", "LockDelay": "15s"}
    refused = await steward.request("PUT", path, {"Items": {"a": "2"}})
    assert refused.status_code == 409
    assert json.loads(refused.text) == shown
    own = {"Items": {"a": "3"}, "Lock": {"ID": taken["Lock"]["ID"]}}
    assert (await steward.post(path, own))["Items"] == {"a": "3"}
    freed = await steward.post(path, own, **{"lock-operation": "release"})
    assert "Lock" not in freed


async def test_wrong_locks_are_refused(steward: Steward) -> None:
    path, body = "/v1/var/app", {"Items": {"a": "1"}}
    for query, more, words in [
        ({"lock-operation": "steal"}, {}, "is unknown"),
        ({"lock-operation": "renew"}, {}, "the lock's ID is missing"),
        ({"lock-operation": "acquire", "cas": "0"}, {}, "CAS can't be used"),
        ({"lock-operation": "acquire"}, {"Lock": {"TTL": "1s"}}, "10s to 24h0m0s"),
        ({"lock-operation": "acquire"}, {"Lock": {"TTL": "soon"}}, "not a duration"),
        ({"lock-operation": "acquire"}, {"Lock": {"TTL": True}}, "not a duration"),
        ({"cas": "x"}, {}, 'can not parse cas: strconv.ParseUint: parsing "x"'),
        ({"cas": "-1"}, {}, "can not parse cas"),
    ]:
        answer = await steward.request("PUT", path, {**body, **more}, **query)
        assert answer.status_code == 400
        assert words in answer.text


async def test_lists_show_no_values_and_can_be_narrowed_down(steward: Steward) -> None:
    await steward.request("PUT", "/v1/namespace/ops", {"Name": "ops"})
    for namespace, path in [("default", "a/1"), ("default", "b/2"), ("ops", "a/3")]:
        await steward.post(f"/v1/var/{path}", {"Items": {"k": "hidden"}}, namespace=namespace)

    async def paths(**query: object) -> list[str]:
        answer = await steward.request("GET", "/v1/vars", **query)
        assert "hidden" not in answer.text
        return [one["Path"] for one in answer.json()]

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


async def test_a_namespace_with_variables_stays(steward: Steward) -> None:
    await steward.request("PUT", "/v1/namespace/ops", {"Name": "ops"})
    await steward.post("/v1/var/a", {"Items": {"k": "v"}}, namespace="ops")
    refused = await steward.request("DELETE", "/v1/namespace/ops")
    assert "has variables in regions: [global]" in refused.text
    await steward.request("DELETE", "/v1/var/a", namespace="ops")
    assert (await steward.request("DELETE", "/v1/namespace/ops")).status_code == 200


async def test_values_outlive_a_crash_and_never_stand_in_the_file(steward: Steward) -> None:
    await steward.post("/v1/var/app", {"Items": {"phrase": "a-value-to-look-for"}})
    await steward.kill_and_restart()
    assert (await steward.get("/v1/var/app"))["Items"]["phrase"] == "a-value-to-look-for"
    await steward.stop()
    kept = [path for path in steward.data_dir.rglob("*") if path.is_file()]
    assert [path for path in kept if b"a-value-to-look-for" in path.read_bytes()] == []
    assert "a-value-to-look-for" not in steward.log.read_text()
