"""Search results by caller and context."""

from typing import Any

import msgspec
import pytest

from daemon.acl.check import KNOWN, Caller
from daemon.api.cluster import search
from storage.errors import Denied, Refused
from storage.queries import evaluations, jobs, namespaces
from storage.queries import search as queries
from storage.queries.documents import decode_row
from storage.records.codec import encode
from storage.records.namespace import Namespace
from storage.records.task import Service
from storage.store import Store
from storage.writer import Transaction
from tests.parts.api.requests import caller, request
from tests.samples import NOW, evaluation, group, job, task

ID = "e3671fa4-2100-4000-8000-000000000000"
READER = 'namespace "default" { policy = "read" }'


@pytest.fixture
async def full(store: Store) -> Store:
    image = task("cache", driver="docker", config={"image": "registry/redis:7"})
    other = task("box", driver="podman", config={"image": "registry/alpine:3"})
    web = job("web", group("front", task("main"), image, other, services=[Service(name="shop")]))

    def fill(tx: Transaction) -> None:
        namespaces.put(tx, Namespace(name="team"))
        evaluations.put(tx, evaluation(jobs.append_version(tx, web), ID), NOW)
        jobs.append_version(tx, job("web/child"))
        jobs.append_version(tx, job("webhook", namespace="team"))

    await store.write(fill)
    return store


def found(store: Store, who: Caller, query: str = "", /, **body: object) -> Any:
    handler = search.fuzzy if "Text" in body else search.by_prefix
    asked = request(store, KNOWN, who, query=query, body=body)
    return msgspec.json.decode(encode(store.read(lambda db: handler(asked, db)).body))


async def test_jobs_are_found_by_prefix(full: Store) -> None:
    answer = found(full, caller(), Prefix="web", Context="jobs")
    assert answer["Matches"] == {"jobs": ["web", "web/child"]}
    assert answer["Truncations"] == {"jobs": False}


async def test_first_twenty_matches_are_shown_and_the_remaining_ones_counted(store: Store) -> None:
    def fill(tx: Transaction) -> None:
        for number in range(21):
            jobs.append_version(tx, job(f"job-{number:02}"))

    await store.write(fill)
    answer = found(store, caller(), Prefix="job", Context="jobs")
    assert len(answer["Matches"]["jobs"]) == 20
    assert answer["Truncations"] == {"jobs": True}


@pytest.mark.parametrize("prefix", ["e", "e3", "e36", "e3671fa4-2", ID])
async def test_identifiers_are_found_by_prefixes_of_any_length(full: Store, prefix: str) -> None:
    assert found(full, caller(), Prefix=prefix, Context="evals")["Matches"] == {"evals": [ID]}


@pytest.mark.parametrize("prefix", ["xx", "e3-xx", "zzz"])
async def test_text_that_is_no_identifier_prefix_is_not_searched(full: Store, prefix: str) -> None:
    assert found(full, caller(), Prefix=prefix, Context="evals")["Matches"] == {}


async def test_namespace_is_accepted_in_the_body_or_the_query(full: Store) -> None:
    expected = {"jobs": ["webhook"]}
    assert found(full, caller(), Prefix="", Context="jobs", Namespace="team")["Matches"] == expected
    assert found(full, caller(), "namespace=team", Context="jobs")["Matches"] == expected


async def test_wildcard_namespace_covers_all_namespaces_readable_by_the_caller(full: Store) -> None:
    mine = found(full, caller(READER), "namespace=*", Prefix="web", Context="jobs")
    assert mine["Matches"] == {"jobs": ["web", "web/child"]}
    every = found(full, caller(), "namespace=*", Prefix="web", Context="jobs")
    assert every["Matches"] == {"jobs": ["web", "web/child", "webhook"]}


async def test_context_without_permission_is_refused(full: Store) -> None:
    with pytest.raises(Denied):
        found(full, caller(READER), Prefix="", Context="nodes")
    with pytest.raises(Denied):
        found(full, caller('node { policy = "read" }'), Prefix="", Context="jobs")


async def test_caller_without_permissions_finds_nothing(full: Store) -> None:
    with pytest.raises(Denied):
        found(full, caller('namespace "default" { policy = "deny" }'), Prefix="", Context="all")


async def test_wildcard_context_covers_all_contexts_readable_by_the_caller(full: Store) -> None:
    matches = found(full, caller(READER), Prefix="web", Context="all")["Matches"]
    assert matches["jobs"] == ["web", "web/child"]
    assert {"nodes", "node_pools", "plugins"} & matches.keys() == set()


async def test_unknown_context_is_named(full: Store) -> None:
    with pytest.raises(Refused, match='got "fish"'):
        found(full, caller(), Prefix="", Context="fish")


@pytest.mark.parametrize(
    ("text", "kind", "name", "scope"),
    [
        ("EB/C", "jobs", "web/child", ["default", "web/child"]),
        ("fron", "groups", "front", ["default", "web"]),
        ("hop", "services", "shop", ["default", "web", "front"]),
        ("ach", "tasks", "cache", ["default", "web", "front"]),
        ("redis", "images", "registry/redis:7", ["default", "web", "front", "cache"]),
        ("alpine", "images", "registry/alpine:3", ["default", "web", "front", "box"]),
    ],
)
async def test_object_inside_a_job_is_found_with_its_position(
    full: Store, text: str, kind: str, name: str, scope: list[str]
) -> None:
    matches = found(full, caller(), Text=text, Context="jobs")["Matches"]
    assert matches[kind] == [{"ID": name, "Scope": scope}]


async def test_earliest_and_shortest_match_is_first(store: Store) -> None:
    def fill(tx: Transaction) -> None:
        for name in ("a-web", "web-long", "web"):
            jobs.append_version(tx, job(name))

    await store.write(fill)
    matches = found(store, caller(), Text="web-", Context="jobs")["Matches"]
    assert [job["ID"] for job in matches["jobs"]] == ["web-long"]
    matches = found(store, caller(), Text="eb", Context="jobs")["Matches"]
    assert [job["ID"] for job in matches["jobs"]] == ["web", "web-long", "a-web"]


async def test_namespaces_have_no_scope(full: Store) -> None:
    matches = found(full, caller(), Text="ea", Context="namespaces")["Matches"]
    assert matches == {"namespaces": [{"ID": "team"}]}


async def test_one_letter_is_too_short_for_a_search(full: Store) -> None:
    with pytest.raises(Refused, match="at least 2 characters, got 1"):
        found(full, caller(), Text="a", Context="all")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ('a"quoted"', 'A"QUO'),
        ("back\\slash", "k\\s"),
        ("tab\tstop", "tab"),
        ("100%_done!", "%_D"),
        ("100%_done!", "e!"),
        ("Übergröße", "ERGRÖß"),
        ("Übergröße", "üb"),
        ("a/b", "A/B"),
    ],
)
async def test_special_characters_of_a_name_are_found(store: Store, name: str, text: str) -> None:
    program = task("main", driver="raw_exec", config={"command": name})
    web = job("web", group("front", program))
    await store.write(lambda tx: jobs.append_version(tx, web))
    answer = found(store, caller(), Text=text, Context="all")
    assert [match["ID"] for match in answer["Matches"]["commands"]] == [name]
    assert "commands" not in found(store, caller(), Text=f"{text}x", Context="all")["Matches"]


async def test_fuzzy_search_decodes_only_jobs_that_contain_the_text(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def noted(row: Any, *rest: Any) -> Any:
        decoded.append(row["job_id"])
        return decode_row(row, *rest)

    monkeypatch.setattr(queries, "decode_row", noted)
    answer = found(full, caller(), Text="CHILD", Context="jobs")
    assert [match["ID"] for match in answer["Matches"]["jobs"]] == ["web/child"]
    assert decoded == ["web/child"]


async def test_best_of_many_matches_are_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(tx: Transaction) -> None:
        for number in range(30):
            jobs.append_version(tx, job(f"{'x' * (30 - number)}match{number:02}"))

    await store.write(fill)
    everything = found(store, caller(), Text="match", Context="jobs")["Matches"]["jobs"]
    monkeypatch.setattr(search, "MOST_FUZZY", 5)
    monkeypatch.setattr(search, "_MOST_UNSORTED", 7)
    answer = found(store, caller(), Text="match", Context="jobs")
    assert answer["Matches"]["jobs"] == everything[:5]
    assert answer["Truncations"] == {"jobs": True}
