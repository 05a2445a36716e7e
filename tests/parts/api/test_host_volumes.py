"""Host volumes: truthful answers, no leaked directories, and the cost of many large volumes."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import msgspec
import pytest
import trio

from daemon.acl.check import ANYONE
from daemon.api.cluster import host_volumes as api
from daemon.evals import host_volumes as rules
from daemon.runner.unfinished_volumes import remove_unfinished
from daemon.web.reply import HandlerReply
from storage import schema
from storage.errors import Conflict, Malformed, NotFound, Refused
from storage.queries import host_volumes, nodes
from storage.queries.pages import PageRequest
from storage.records.group import Volume
from storage.records.host_volume import DELETING, MKDIR, PENDING, READY, DynamicVolume
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import caller, parts_of, request
from tests.parts.api.test_job_log_views import MOST, TRIES, searched_seldom
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job, task
from tests.step_timing import Longest, slowness
from tests.unit.scheduler.world import node

__all__ = ["searched_seldom"]  # a fixture


class Launcher:
    """Directories of volumes in memory; if `error` is set, removing a directory raises it."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.made: set[str] = set()
        self.error: OSError | None = None
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def create_volume(self, volume_id: str, _mode: int, _owner: tuple[int, int]) -> None:
        self.made.add(volume_id)
        if self.meanwhile is not None:
            await self.meanwhile()

    async def remove_volume(self, volume_id: str) -> None:
        if self.error is not None:
            raise self.error
        self.made.discard(volume_id)


class Volumes:
    """The routes of host volumes, on one node."""

    def __init__(self, store: Store, cluster: Cluster, node_id: str) -> None:
        self.store, self.cluster = store, cluster
        self.launcher: Any = Launcher(node_id)
        ids: Iterator[str] = (f"id-{number}" for number in count())
        self.parts = msgspec.structs.replace(
            parts_of(store, asks=False), tasks=self.launcher, ids=ids
        )

    def _request(self, query: str = "", body: object = None, **parameters: str) -> Any:
        asked = request(self.store, ANYONE, caller(), query=query, body=body, **parameters)
        return msgspec.structs.replace(asked, parts=self.parts)

    async def create(self, name: str, **fields: object) -> Any:
        reply = await api.create(self._request(body={"Volume": {"Name": name, **fields}}))
        return reply.body["Volume"]

    async def delete(self, volume_id: str, query: str = "") -> HandlerReply:
        return await api.delete(self._request(query, volume_id=volume_id))

    async def list(self, query: str = "") -> tuple[list[Any], str]:
        """Return the elements of a page, and the token of the next page."""
        asked = self._request(f"type=host&{query}")
        reply = await self.store.read_any(lambda db: api.index(asked, db))
        while reply.later is not None:
            reply = await self.store.read_any(reply.later)
        if isinstance(reply.body, bytes):
            return json.loads(reply.body), reply.next_token
        part, found = reply.part, list[Any]()
        while part is not None:
            found += map(json.loads, part.lines)
            part = await self.store.read_any(part.rest) if part.rest else None
        return found, reply.next_token

    def state(self, volume_id: str) -> str:
        found = self.store.read(lambda db: host_volumes.find(db, volume_id))
        return found.state if found else ""

    def offered(self) -> set[str]:
        node_id = self.launcher.node_id
        found = self.store.read(lambda db: nodes.find(db, node_id))
        assert found is not None
        return {*found.host_volumes}


@pytest.fixture
async def volumes(store: Store) -> Volumes:
    cluster = Cluster(store)
    one = node()
    await cluster.join(one)
    return Volumes(store, cluster, one.id)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"RequestedCapacityMinBytes": 2, "RequestedCapacityMaxBytes": 1},
            "volume 'photos': RequestedCapacityMaxBytes must not be less than",
        ),
        ({"Parameters": {"mode": "0788"}}, "mode: write an octal number"),
    ],
)
async def test_impossible_volume_is_refused(
    volumes: Volumes, fields: dict[str, object], text: str
) -> None:
    with pytest.raises(Malformed, match=text):
        await volumes.create("photos", **fields)
    assert volumes.launcher.made == set()


async def test_volume_with_equal_sizes_is_created(volumes: Volumes) -> None:
    sizes = {"RequestedCapacityMinBytes": 1, "RequestedCapacityMaxBytes": 1}
    assert (await volumes.create("photos", **sizes))["Name"] == "photos"


def test_mode_of_a_volume_is_octal() -> None:
    volume = DynamicVolume(name="photos", parameters={"mode": "0750", "uid": "7", "gid": "8"})
    assert rules.parameters_of(volume) == rules.Parameters(mode=0o750, uid=7, gid=8)


async def test_type_of_a_volume_cannot_be_changed(volumes: Volumes) -> None:
    made = await volumes.create("photos")
    stored = volumes.store.read(lambda db: host_volumes.find(db, made["ID"]))
    assert stored is not None
    given = msgspec.structs.replace(stored, plugin_id="", host_path="/srv/photos", parameters=None)
    with pytest.raises(Malformed, match="cannot be changed: the volume was created"):
        volumes.store.read(
            lambda db: rules.complete(
                db, given, volumes.launcher.node_id, "global", registered=True
            )
        )


async def test_type_of_a_registered_volume_cannot_be_changed(volumes: Volumes) -> None:
    node_id = volumes.launcher.node_id
    made = await volumes.create("photos")
    stored = volumes.store.read(lambda db: host_volumes.find(db, made["ID"]))
    assert stored is not None
    registered = msgspec.structs.replace(stored, plugin_id="", host_path="/srv/photos")
    await volumes.store.write(lambda tx: host_volumes.put(tx, registered))
    given = msgspec.structs.replace(registered, host_path="")
    with pytest.raises(Malformed, match="cannot be changed: the volume was registered"):
        volumes.store.read(
            lambda db: rules.complete(db, given, node_id, "global", registered=False)
        )


@pytest.mark.parametrize(("registered", "size"), [(True, 5), (False, 0)])
async def test_only_a_registered_volume_has_a_known_size(
    volumes: Volumes, registered: bool, size: int
) -> None:
    wanted = DynamicVolume(
        name="photos",
        namespace="default",
        node_id=volumes.launcher.node_id,
        capacity_bytes=5,
        host_path="/srv/photos" if registered else "",
    )
    complete = volumes.store.read(
        lambda db: rules.complete(
            db, wanted, volumes.launcher.node_id, "global", registered=registered
        )
    )
    assert complete.capacity_bytes == size


async def test_new_volume_cannot_have_the_name_of_a_configured_one(volumes: Volumes) -> None:
    node_id = volumes.launcher.node_id

    def offer(tx: Transaction) -> None:
        found = nodes.find(tx, node_id)
        assert found is not None
        configured: dict[str, dict[str, object]] = {"photos": {"Path": "/srv/photos"}}
        nodes.put(tx, msgspec.structs.replace(found, host_volumes=configured), "NodeEvent")

    await volumes.store.write(offer)
    with pytest.raises(Conflict, match=f"'photos' already exists on node {node_id}"):
        await volumes.create("photos")
    assert (await volumes.create("other"))["Name"] == "other"


@pytest.mark.parametrize(
    ("volume", "messages"),
    [
        (DynamicVolume(name="a", plugin_id=MKDIR), []),
        (DynamicVolume(name="a", plugin_id=MKDIR, parameters={"mode": "0700", "uid": "1"}), []),
        (
            DynamicVolume(name="a", plugin_id=MKDIR, parameters={"size": "1"}),
            ['unknown parameter "size" of mkdir is ignored'],
        ),
        (
            DynamicVolume(name="a", plugin_id=MKDIR, requested_capacity_max_bytes=1),
            ["mkdir limits no sizes: the requested capacity has no effect"],
        ),
        (
            DynamicVolume(name="a", plugin_id=MKDIR, requested_capacity_min_bytes=1),
            ["mkdir limits no sizes: the requested capacity has no effect"],
        ),
        (
            DynamicVolume(name="a", parameters={"mode": "0700"}),
            ["a registered volume has no plug-in: its Parameters have no effect"],
        ),
        (DynamicVolume(name="a", requested_capacity_max_bytes=1), []),
    ],
)
def test_setting_of_a_volume_without_effect_causes_a_warning(
    volume: DynamicVolume, messages: list[str]
) -> None:
    assert rules.warnings(volume) == messages


async def test_repeated_removal_of_a_volume_changes_nothing(volumes: Volumes) -> None:
    made = await volumes.create("photos")
    ids = map(str, count())
    first = await rules.retire(volumes.store, made["ID"], ids, now=NOW)
    before = volumes.store.read(lambda db: host_volumes.find(db, made["ID"]))
    assert await rules.retire(volumes.store, made["ID"], ids, now=NOW) > first
    assert volumes.store.read(lambda db: host_volumes.find(db, made["ID"])) == before
    assert volumes.store.read(lambda db: db.table_index("nodes")) == first


async def test_change_of_a_volume_that_was_deleted_is_refused(volumes: Volumes) -> None:
    made = await volumes.create("photos")
    stored = volumes.store.read(lambda db: host_volumes.find(db, made["ID"]))
    assert stored is not None
    await volumes.delete(made["ID"])
    with pytest.raises(Conflict, match="was deleted in the meantime"):
        await rules.put(volumes.store, stored, map(str, count()), now=NOW)


async def test_failed_deletion_is_reported_and_can_be_repeated(volumes: Volumes) -> None:
    made = await volumes.create("photos")
    assert volumes.launcher.made == {made["ID"]}
    volumes.launcher.error = OSError(16, "busy")
    for _ in range(2):
        with pytest.raises(Refused, match=r"cannot be deleted: .*busy.*state deleting"):
            await volumes.delete(made["ID"])
        assert (volumes.state(made["ID"]), volumes.offered()) == (DELETING, set())
    with pytest.raises(Conflict, match='cannot be changed in the state "deleting"'):
        await volumes.create("photos", ID=made["ID"])
    with pytest.raises(Conflict, match="already exists"):
        await volumes.create("photos")
    volumes.launcher.error = None
    await volumes.delete(made["ID"])
    assert (volumes.state(made["ID"]), volumes.launcher.made) == ("", set())
    with pytest.raises(NotFound):
        await volumes.delete(made["ID"])
    await volumes.create("photos")


async def test_deletion_by_force_leaves_only_the_directory(volumes: Volumes) -> None:
    made = await volumes.create("photos")
    volumes.launcher.error = OSError(16, "busy")
    await volumes.delete(made["ID"], "force=true")
    assert (volumes.state(made["ID"]), volumes.launcher.made) == ("", {made["ID"]})


async def test_deletion_that_a_kill_interrupts_is_done_at_the_next_start(volumes: Volumes) -> None:
    made = [await volumes.create(name) for name in ("a", "b", "c")]
    ids = map(str, count())
    for item in made[:2]:
        await rules.retire(volumes.store, item["ID"], ids, now=NOW)
    found = volumes.store.read(host_volumes.unfinished)
    assert found == sorted(item["ID"] for item in made[:2])
    volumes.launcher.error = OSError(16, "busy")
    await remove_unfinished(volumes.store, volumes.launcher, found)
    assert [volumes.state(item["ID"]) for item in made] == [DELETING, DELETING, READY]
    volumes.launcher.error = None
    await remove_unfinished(volumes.store, volumes.launcher, found)
    assert [volumes.state(item["ID"]) for item in made] == ["", "", READY]
    assert volumes.launcher.made == {made[2]["ID"]}


async def test_volume_is_stored_before_its_directory_is_created(volumes: Volumes) -> None:
    seen: list[tuple[str, set[str]]] = []

    async def look() -> None:
        (one,) = volumes.launcher.made
        seen.append((volumes.state(one), volumes.offered()))
        assert volumes.store.read(host_volumes.unfinished) == [one]
        with pytest.raises(Conflict, match="already exists"):
            await rules.reserve(volumes.store, DynamicVolume(id="other", name="photos"))

    volumes.launcher.meanwhile = look
    made = await volumes.create("photos")
    assert seen == [(PENDING, set())]
    assert (made["State"], volumes.offered()) == (READY, {"photos"})
    assert made["CreateIndex"] == made["ModifyIndex"]


@pytest.mark.parametrize(
    ("error", "told"),
    [(OSError(28, "no space"), Malformed), (Conflict("changed meanwhile"), Conflict)],
)
async def test_failed_creation_leaves_neither_row_nor_directory(
    volumes: Volumes, error: Exception, told: type[Exception]
) -> None:
    async def fail() -> None:
        raise error

    volumes.launcher.meanwhile = fail
    with pytest.raises(told):
        await volumes.create("photos")
    assert (await volumes.list(), volumes.launcher.made) == (([], ""), set())
    assert volumes.store.read(host_volumes.unfinished) == []


async def test_use_is_checked_in_the_transaction_of_a_change(volumes: Volumes) -> None:
    made = await volumes.create("photos")

    async def place() -> None:
        wanted = {"v": Volume(name="v", type="host", source="photos")}
        await volumes.cluster.register(job("web", group("web", task(), volumes=wanted)))
        await volumes.cluster.work()

    volumes.launcher.meanwhile = place
    with pytest.raises(Conflict, match="is in use by allocations"):
        await volumes.create("photos", ID=made["ID"], Parameters={"mode": "0711"})
    (one,) = volumes.cluster.allocations()
    with pytest.raises(Conflict, match=one.id):
        await volumes.delete(made["ID"])
    assert (volumes.state(made["ID"]), volumes.offered()) == (READY, {"photos"})


async def test_document_has_a_limit_and_the_error_names_the_longest_field(volumes: Volumes) -> None:
    parameters = {f"p{number}": "x" * 4000 for number in range(5)}
    with pytest.raises(Malformed, match=r"20\d\d\d of them in Parameters: the maximum is 16384"):
        await volumes.create("photos", Parameters=parameters)
    assert await volumes.list() == ([], "")


async def _fill(volumes: Volumes, number: int) -> None:
    def work(tx: Transaction) -> None:
        for place in range(number):
            volume = DynamicVolume(
                id=f"{place:08x}-0000-4000-8000-000000000000",
                namespace="default",
                name=f"v{place}",
                plugin_id=MKDIR,
                node_id=volumes.launcher.node_id,
                parameters={f"p{n}": "x" * 3900 for n in range(4)},
                host_path=f"/volumes/{place}",
                state=READY,
            )
            host_volumes.put(tx, volume)

    await volumes.store.write(work, is_long=True)


async def test_list_has_pages(volumes: Volumes) -> None:
    await _fill(volumes, 7)
    found, token = await volumes.list("per_page=3")
    assert [item["Name"] for item in found] == ["v0", "v1", "v2"]
    found, token = await volumes.list(f"per_page=3&next_token={token}")
    assert [item["Name"] for item in found] == ["v3", "v4", "v5"]
    found, token = await volumes.list(f"per_page=3&next_token={token}")
    assert ([item["Name"] for item in found], token) == (["v6"], "")
    found, token = await volumes.list("per_page=2&reverse=true")
    assert [item["Name"] for item in found] == ["v6", "v5"]
    assert [volume["Name"] for volume in (await volumes.list("prefix=v3"))[0]] == ["v3"]
    assert await volumes.list("node_id=other") == ([], "")


@pytest.mark.usefixtures("searched_seldom")
async def test_many_large_volumes_do_not_block_the_event_loop(volumes: Volumes) -> None:
    await _fill(volumes, 999)
    node_id = volumes.launcher.node_id

    async def longest(ask: Callable[[], Awaitable[object]]) -> int:
        measure = Longest()
        trio.lowlevel.add_instrument(measure)
        try:
            await trio.lowlevel.checkpoint()
            await ask()
        finally:
            await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(measure)
        return measure.longest

    async def create_and_delete() -> None:
        await volumes.delete((await volumes.create("photos"))["ID"])

    async def offer() -> None:
        found = await volumes.store.read_any(lambda db: host_volumes.on_node(db, node_id))
        assert len(found) == 999

    for ask in (create_and_delete, offer, lambda: volumes.list("per_page=20")):
        found: list[int] = []
        while not found or (found[-1] > MOST and len(found) < TRIES):
            found.append(await longest(ask))
        assert min(found) <= MOST or min(found) <= MOST * slowness(), (ask, found)


async def test_existing_volumes_are_added_to_the_index(volumes: Volumes) -> None:
    await _fill(volumes, 3)
    steps = [text for text in schema.migrations().values() if "host_volumes_by_name" in text]
    fill = re.search(r"INSERT INTO host_volumes.*?;", steps[0], re.DOTALL)
    assert fill is not None

    def work(tx: Transaction) -> list[DynamicVolume]:
        page_request = PageRequest(namespace="*")
        before = [*host_volumes.page(tx, page_request)]
        tx.execute("DELETE FROM host_volumes", {})
        assert [*host_volumes.page(tx, page_request)] == []
        tx.execute(fill[0], {})
        assert [*host_volumes.page(tx, page_request)] == before
        return before

    assert len(await volumes.store.write(work)) == 3
    path = volumes.store.read(lambda db: host_volumes.paths(db, ""))
    assert sorted(path) == ["/volumes/0", "/volumes/1", "/volumes/2"]
    assert volumes.store.read(host_volumes.unfinished) == []
