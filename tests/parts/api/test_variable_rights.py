"""Permissions and visible fields of each capability on a variable."""

import json

import pytest

from daemon.acl.check import KNOWN, Caller, on_variable
from daemon.api.cluster import variables
from daemon.web.reply import HandlerReply
from storage.errors import Denied
from storage.records.codec import encode
from storage.store import Store
from tests.parts.api.requests import caller, request

READ, WRITE, DESTROY = on_variable("read"), on_variable("write"), on_variable("destroy")


def allowing(*capabilities: str, path: str = "app/*") -> Caller:
    listed = json.dumps(capabilities)
    return caller(
        f'namespace "default" {{ variables {{ path "{path}" {{ capabilities = {listed} }} }} }}'
    )


async def put(
    store: Store, who: Caller, path: str = "app/db", *, query: str = "", **body: object
) -> HandlerReply:
    sent = {"Items": {"k": "hidden"}, **body}
    return await variables.write(request(store, WRITE, who, query=query, body=sent, path=path))


def read(store: Store, who: Caller, path: str = "app/db") -> HandlerReply:
    asked = request(store, READ, who, path=path)
    return store.read(lambda db: variables.read(asked, db))


def listed(store: Store, who: Caller) -> list[str]:
    asked = request(store, KNOWN, who)
    reply = store.read(lambda db: variables.index(asked, db))
    assert isinstance(reply.body, bytes)
    return [pair["Path"] for pair in json.loads(reply.body)]


async def test_write_permission_does_not_permit_reads(store: Store) -> None:
    writer = allowing("write")
    await put(store, writer)
    with pytest.raises(Denied):
        read(store, writer)


async def test_read_permission_does_not_permit_writes(store: Store) -> None:
    await put(store, caller())
    reader = allowing("read")
    assert b"hidden" in encode(read(store, reader).body)
    with pytest.raises(Denied):
        await put(store, reader)


async def test_removal_needs_the_capability_to_destroy(store: Store) -> None:
    await put(store, caller())
    with pytest.raises(Denied):
        await variables.remove(request(store, DESTROY, allowing("read", "write"), path="app/db"))
    done = await variables.remove(request(store, DESTROY, allowing("destroy"), path="app/db"))
    assert done.status == 204


async def test_capability_applies_only_to_its_paths(store: Store) -> None:
    with pytest.raises(Denied):
        await put(store, allowing("write"), "other")


async def test_capability_in_one_namespace_does_not_apply_to_others(store: Store) -> None:
    for asked in ({"query": "namespace=ops"}, {"Namespace": "ops"}):
        with pytest.raises(Denied):
            await put(store, allowing("write"), **asked)


async def test_list_shows_only_paths_with_the_list_capability(store: Store) -> None:
    for path in ("app/a", "app/b", "other"):
        await put(store, caller(), path)
    assert listed(store, caller()) == ["app/a", "app/b", "other"]
    assert listed(store, allowing("list")) == ["app/a", "app/b"]
    assert listed(store, allowing("read", path="other")) == ["other"]
    assert listed(store, allowing("write")) == []


async def test_conflict_shows_values_only_to_readers(store: Store) -> None:
    await put(store, caller())
    blind = await put(store, allowing("write"), query="cas=1")
    assert blind.status == 409
    assert isinstance(blind.body, bytes)
    assert b"hidden" not in blind.body
    assert b"app/db" in blind.body
    seeing = await put(store, allowing("read", "write"), query="cas=1")
    assert isinstance(seeing.body, bytes)
    assert b"hidden" in seeing.body
