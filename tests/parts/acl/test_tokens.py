"""Tokens: found only by their secret, and removed on time; policy changes apply immediately."""

import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.acl import caller_cache
from daemon.acl.grant import CapabilitySet
from daemon.acl.keyring import Keyring
from daemon.acl.lockout import AT_ONCE, LockoutPolicy
from daemon.acl.response_wrapping import lookup_wrapped, unwrap_response, wrap_response
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.token_requests import TokenRequestFields, create_token
from daemon.acl.tokens import STEP, TokenStore, is_within, open_tokens
from daemon.text.request_fields import RequestFields
from storage.errors import Malformed, StorageUnreadable, TooOften, UnknownToken, UnusableToken
from storage.queries import allocations, entities, groups, jobs, mounts, policies, secrets
from storage.queries import tokens as rows
from storage.records.acl import AclRole, JobACL, Policy, PolicyLink, Token, TokenKind
from storage.records.allocation import ClientStatus
from storage.records.base import SECOND
from storage.records.identity import Alias, Entity, Group, Mount
from storage.records.workload import Workload
from storage.store import FILE_NAME, Store
from storage.writer import Transaction
from tests.samples import NOW, job
from tests.unit.runner.placements import placed

READ = 'namespace "default" { policy = "read" }'
WRITE = 'namespace "default" { policy = "write" }'


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> int:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def tokens(store: Store, clock: Clock) -> AsyncIterator[TokenStore]:
    lock_out = LockoutPolicy(threshold=3, span=60 * SECOND)
    seal = EnvelopeCipher({1: bytes(32)})
    async with open_tokens(store, clock, seal, asks=True, lock_out=lock_out) as opened:
        yield opened


def token(accessor: str = "a", *names: str, **fields: object) -> Token:
    return Token(accessor=accessor, policies=names, created_at=NOW, **fields)


def whole_file(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.glob(f"{FILE_NAME}*"))


async def write_policy(store: Store, name: str, rules: str) -> None:
    await store.write(lambda tx: policies.put(tx, Policy(name=name, rules=rules)))


async def test_a_token_is_found_by_its_secret(tokens: TokenStore) -> None:
    issued = await tokens.issue(token("a", "root"))
    caller = tokens.resolve(issued.secret)
    assert caller.token == issued.token
    assert caller.grant.everything


async def test_token_secret_is_not_stored_in_plain_text(
    tokens: TokenStore, store: Store, tmp_path: Path
) -> None:
    issued = await tokens.issue(token("a", "root"), "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11")
    kept = whole_file(tmp_path)
    assert issued.token.accessor.encode() in kept
    assert issued.secret.encode() not in kept
    assert store.read(lambda db: rows.find_by_secret(db, issued.secret.encode())) is None


@pytest.mark.parametrize(
    ("secret", "reason"),
    [
        ("11111111-1111-1111-1111-111111111111", "Permission denied"),
        (
            "garbage",
            "failed to parse signed token: go-jose/go-jose: compact JWS format must have three parts",
        ),
        ("s.AAAAAAAAAAAAAAAAAAAAAAAA", "failed to parse signed token: go-jose/go-jose: "),
        ("b.AAAA", "failed to parse signed token"),
        ("b.\udcff", "failed to parse signed token"),
        ("a.b.c", "failed to parse signed token: it was not signed here"),
    ],
)
async def test_an_unknown_secret_is_refused(tokens: TokenStore, secret: str, reason: str) -> None:
    with pytest.raises(UnknownToken) as caught:
        tokens.resolve(secret)
    assert str(caught.value) == "Permission denied"
    assert caught.value.reason.startswith(reason)


async def test_token_is_cached_before_its_policy_is_written(
    tokens: TokenStore, store: Store
) -> None:
    secret = (await tokens.issue(token("a", "staff"))).secret
    first = tokens.resolve(secret)
    assert tokens.resolve(secret) is first
    await write_policy(store, "staff", READ)
    assert tokens.resolve(secret).grant.may("default", "read-job")


async def test_no_caller_is_cached_while_a_change_is_written(
    tokens: TokenStore, store: Store
) -> None:
    secret = (await tokens.issue(token("a", "root"))).secret

    def resolve(tx: Transaction) -> bool:
        return tokens.resolve(secret) is tokens.resolve(secret)

    assert not await store.write(resolve)


async def test_number_of_cached_callers_is_limited(
    tokens: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_cache, "MOST", 2)
    secret = (await tokens.issue(token("a", "root"))).secret
    first = tokens.resolve(secret)
    tokens.resolve(secret, "10.0.0.1")
    tokens.resolve(secret, "10.0.0.2")
    assert tokens.resolve(secret) is not first


async def test_request_without_a_secret_has_the_anonymous_token(
    tokens: TokenStore, store: Store
) -> None:
    assert not tokens.resolve("").grant.may("default", "read-job")
    await write_policy(store, "anonymous", READ)
    caller = tokens.resolve("")
    assert caller.token.accessor == "anonymous"
    assert caller.grant.may("default", "read-job")


async def test_a_changed_policy_is_in_force_for_the_next_request(
    tokens: TokenStore, store: Store
) -> None:
    secret = (await tokens.issue(token("a", "p"))).secret
    assert not tokens.resolve(secret).grant.may("default", "read-job")
    await write_policy(store, "p", READ)
    assert tokens.resolve(secret).grant.may("default", "read-job")
    assert not tokens.resolve(secret).grant.may("default", "submit-job")
    await write_policy(store, "p", WRITE)
    assert tokens.resolve(secret).grant.may("default", "submit-job")
    await store.write(lambda tx: policies.remove(tx, "p"))
    assert not tokens.resolve(secret).grant.may("default", "read-job")


async def test_a_role_gives_its_policies(tokens: TokenStore, store: Store) -> None:
    await write_policy(store, "p", READ)
    role = AclRole(id="r", name="readers", policies=[PolicyLink(name="p")])
    await store.write(lambda tx: policies.put_role(tx, role))
    secret = (await tokens.issue(token("a", roles=("r",)))).secret
    assert tokens.resolve(secret).grant.may("default", "read-job")
    await store.write(lambda tx: policies.remove_role(tx, "r"))
    assert not tokens.resolve(secret).grant.may("default", "read-job")


async def test_deleted_role_gives_no_policies(tokens: TokenStore, store: Store) -> None:
    await write_policy(store, "staff", READ)
    await write_policy(store, "own", 'namespace "team" { policy = "read" }')
    role = AclRole(id="1", name="r", policies=[PolicyLink(name="staff")])
    await store.write(lambda tx: policies.put_role(tx, role))
    await store.write(lambda tx: policies.put_role(tx, AclRole(id="2", name="empty")))
    secret = (await tokens.issue(token("a", "own", roles=("1", "2")))).secret
    assert tokens.resolve(secret).grant.may("default", "read-job")
    await store.write(lambda tx: policies.remove_role(tx, "1"))
    remaining = tokens.resolve(secret)
    assert not remaining.grant.may("default", "read-job")
    assert remaining.grant.may("team", "read-job")


async def test_unreadable_policy_revokes_all_permissions(tokens: TokenStore, store: Store) -> None:
    await write_policy(store, "good", READ)
    await write_policy(store, "broken", "what is {")
    secret = (await tokens.issue(token("a", "good", "broken"))).secret
    assert not tokens.resolve(secret).grant.may("default", "read-job")


async def test_disabled_access_control_permits_every_request(store: Store, clock: Clock) -> None:
    unasked = TokenStore(store, clock, Keyring(bytes(32)), asks=False)
    assert unasked.resolve("").grant.everything
    assert unasked.resolve("garbage").token.accessor == "acls-disabled"


# ---- time, uses, addresses -------------------------------------------------------------------


async def test_token_expires_exactly_at_its_time(tokens: TokenStore, clock: Clock) -> None:
    secret = (await tokens.issue(token("a", "root", expires_at=NOW + SECOND))).secret
    clock.time = NOW + SECOND - 1
    assert tokens.resolve(secret).grant.everything
    clock.time = NOW + SECOND
    with pytest.raises(UnknownToken):
        tokens.resolve(secret)


async def test_expired_tokens_are_deleted_in_steps(
    store: Store, clock: Clock, tokens: TokenStore
) -> None:
    for number in range(STEP + 5):
        await tokens.issue(token(f"a{number}", expires_at=NOW + 1))
    kept = (await tokens.issue(token("kept"))).token
    clock.time = NOW + SECOND
    with trio.fail_after(10):
        while len(store.read(rows.list_all)) > 1:
            tokens.schedule_expiry(0)
            await trio.lowlevel.checkpoint()
    assert store.read(rows.list_all) == [kept]


@pytest.mark.parametrize(("ends_in", "writes"), [(3600 * SECOND, 1), (59 * SECOND, 2)])
async def test_only_a_token_with_an_early_expiry_wakes_the_cleanup_task(
    store: Store, tokens: TokenStore, monkeypatch: pytest.MonkeyPatch, ends_in: int, writes: int
) -> None:
    await has_looked(tokens)
    write, seen = store.write, []

    async def counted(work: Callable[[Transaction], object]) -> object:
        seen.append(work)
        return await write(work)

    monkeypatch.setattr(store, "write", counted)
    await tokens.issue(token("a", expires_at=NOW + ends_in))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert len(seen) == writes


async def has_looked(tokens: TokenStore) -> None:
    """Wait until the task that removes tokens has run for the first time."""
    with trio.fail_after(10):
        while tokens._looks_at > NOW + 3600 * SECOND:
            await trio.lowlevel.checkpoint()


async def test_token_with_two_uses_is_used_twice(tokens: TokenStore) -> None:
    secret = (await tokens.issue(token("a", "p", uses_left=2))).secret
    assert (await tokens.authenticate(secret)).token.uses_left == 1
    assert (await tokens.authenticate(secret)).token.uses_left == -1
    with pytest.raises(UnknownToken):
        await tokens.authenticate(secret)


async def test_concurrent_requests_cannot_share_the_last_use(tokens: TokenStore) -> None:
    secret = (await tokens.issue(token("a", "p", uses_left=1))).secret
    outcomes: list[str] = []

    async def use() -> None:
        try:
            await tokens.authenticate(secret)
            outcomes.append("used")
        except UnknownToken:
            outcomes.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        nursery.start_soon(use)
    assert sorted(outcomes) == ["refused", "used"]


async def test_token_bound_to_networks_is_refused_from_other_addresses(tokens: TokenStore) -> None:
    secret = (await tokens.issue(token("a", "root", bound_cidrs=("10.0.0.0/8",)))).secret
    assert tokens.resolve(secret, "10.1.2.3").grant.everything
    with pytest.raises(UnknownToken):
        tokens.resolve(secret, "127.0.0.1")


@pytest.mark.parametrize(
    ("address", "cidrs", "answer"),
    [
        ("127.0.0.1", ["127.0.0.1"], True),
        ("::ffff:127.0.0.1", ["127.0.0.0/8"], True),
        ("::1", ["127.0.0.0/8", "::1/128"], True),
        ("127.0.0.1", ["::ffff:127.0.0.1"], True),
        ("127.0.0.9", ["::ffff:127.0.0.0/104"], True),
        ("10.0.0.1", ["::ffff:127.0.0.0/104"], False),
        ("127.0.0.1", ["::/0"], False),
        ("10.0.0.1", ["300.1.1.1/8"], False),
        ("", ["0.0.0.0/0"], False),
        ("no address", ["0.0.0.0/0"], False),
    ],
)
def test_address_is_matched_against_a_network(
    address: str, cidrs: list[str], *, answer: bool
) -> None:
    assert is_within(address, cidrs) is answer


async def test_wrapping_token_is_spent_by_any_request(tokens: TokenStore, store: Store) -> None:
    wrapped = await wrap_response(store, tokens, b"{}", "sys/x", ttl=60, now=NOW)
    assert store.read(lambda db: lookup_wrapped(db, tokens, wrapped.secret)).answer == b"{}"
    await tokens.authenticate(wrapped.secret)
    with pytest.raises(Malformed, match="wrapping token is not valid"):
        await unwrap_response(store, tokens, wrapped.secret)
    with pytest.raises(UnknownToken):
        await tokens.authenticate(wrapped.secret)


# ---- families --------------------------------------------------------------------------------


async def test_a_token_ends_with_its_parent(tokens: TokenStore, store: Store) -> None:
    await tokens.issue(token("parent"))
    await tokens.issue(token("child", parent="parent"))
    await tokens.issue(token("grandchild", parent="child"))
    await tokens.issue(token("other"))
    assert await store.write(lambda tx: rows.remove(tx, "parent")) == 3
    assert [row.accessor for row in store.read(rows.list_all)] == ["other"]


async def test_children_of_an_orphan_parent_stay_valid(tokens: TokenStore, store: Store) -> None:
    await tokens.issue(token("parent"))
    await tokens.issue(token("child", parent="parent"))
    await store.write(lambda tx: rows.orphan_children(tx, "parent"))
    await store.write(lambda tx: rows.remove(tx, "parent"))
    child = store.read(lambda db: rows.find(db, "child"))
    assert child is not None
    assert child.parent == ""


async def test_deleted_auth_method_revokes_its_tokens(tokens: TokenStore, store: Store) -> None:
    for number in range(STEP + 5):
        await tokens.issue(token(f"a{number}", mount="auth_cloudid_1"))
    await tokens.issue(token("other", mount="auth_cloudid_2"))
    await tokens.revoke_mount("auth_cloudid_1")
    assert [row.accessor for row in store.read(rows.list_all)] == ["other"]


async def test_secret_belongs_to_only_one_token(tokens: TokenStore) -> None:
    await tokens.issue(token("a"), "mine")
    with pytest.raises(Malformed, match="duplicate"):
        await tokens.issue(token("b"), "mine")


# ---- batch tokens ----------------------------------------------------------------------------


async def test_batch_token_is_not_stored(tokens: TokenStore, store: Store, clock: Clock) -> None:
    given = token("", "root", kind=TokenKind.BATCH, expires_at=NOW + SECOND)
    issued = await tokens.issue(given)
    assert issued.secret.startswith("b.")
    assert store.read(rows.list_all) == []
    assert tokens.resolve(issued.secret).token == given
    clock.time += SECOND
    with pytest.raises(UnknownToken):
        tokens.resolve(issued.secret)


async def test_batch_token_ends_with_its_parent(tokens: TokenStore, store: Store) -> None:
    await tokens.issue(token("parent"))
    child, orphan, of_task = [
        (await tokens.issue(token("", "root", parent=parent, kind=TokenKind.BATCH))).secret
        for parent in ("parent", "", "alloc/task")
    ]
    assert tokens.resolve(child).token.parent == "parent"
    await store.write(lambda tx: rows.remove(tx, "parent"))
    with pytest.raises(UnusableToken):
        tokens.resolve(child)
    assert tokens.resolve(orphan).grant.everything
    assert tokens.resolve(of_task).grant.everything


def test_changed_batch_token_is_invalid() -> None:
    keyring = Keyring(bytes(32))
    secret = keyring.batch_secret(token("", "p", kind=TokenKind.BATCH))
    assert keyring.batch_token(secret) is not None
    changed = [
        secret[:at] + ("A" if secret[at] != "A" else "B") + secret[at + 1 :] for at in (5, 40, -5)
    ]
    assert list(map(keyring.batch_token, changed)) == [None, None, None]
    assert Keyring(bytes(31) + b"1").batch_token(secret) is None


def test_partly_correct_secret_is_as_wrong_as_any_other() -> None:
    """A secret is found by its keyed hash, so near guesses are as wrong as all others."""
    keyring = Keyring(bytes(32))
    secret = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test
    near = [secret[:at] + "x" + secret[at + 1 :] for at in range(len(secret))]
    alike = [
        sum(a == b for a, b in zip(keyring.hash(secret), keyring.hash(item), strict=True))
        for item in near
    ]
    assert max(alike) <= 3  # equal bytes, of 32


# ---- speed -----------------------------------------------------------------------------------


async def test_simultaneous_expiry_of_many_tokens_delays_no_request(
    store: Store, clock: Clock, tokens: TokenStore
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(2000):
            nursery.start_soon(tokens.issue, token(f"a{number}", expires_at=NOW + 1))
    secret = (await tokens.issue(token("kept", "root"))).secret
    clock.time = NOW + SECOND
    tokens.schedule_expiry(0)
    slowest = 0.0
    with trio.fail_after(60):
        while len(store.read(partial(rows.ended, now=clock.time, most=1))):
            begun = trio.current_time()
            await store.write(lambda tx: policies.put(tx, Policy(name="p")))
            tokens.resolve(secret)
            slowest = max(slowest, trio.current_time() - begun)
    assert slowest < 0.5
    assert msgspec.structs.asdict(tokens.resolve(secret).token)["accessor"] == "kept"


async def test_guessing_is_rate_limited_and_a_valid_token_still_passes(tokens: TokenStore) -> None:
    secret = (await tokens.issue(token("a", "root"))).secret
    for number in range(AT_ONCE):
        with pytest.raises(UnknownToken):
            await tokens.authenticate(f"guess-{number}", "127.0.0.1")
    with pytest.raises(TooOften):
        await tokens.authenticate("guess", "127.0.0.1")
    assert (await tokens.authenticate(secret, "127.0.0.1")).grant.everything


async def test_guesses_of_one_user_do_not_lock_out_other_users_of_this_host(
    tokens: TokenStore,
) -> None:
    for number in range(AT_ONCE):
        with pytest.raises(UnknownToken):
            await tokens.authenticate(f"guess-{number}", "127.0.0.1", client_key="user 1000")
    with pytest.raises(TooOften, match="too many wrong credentials from user 1000"):
        await tokens.authenticate("guess", "127.0.0.1", client_key="user 1000")
    with pytest.raises(UnknownToken):
        await tokens.authenticate("guess", "127.0.0.1", client_key="user 1001")


async def test_lockout_refuses_guesses_and_accepts_a_valid_token(
    tokens: TokenStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    secret = (await tokens.issue(token("a", "root"))).secret
    for number in range(3):
        with pytest.raises(UnknownToken):
            await tokens.authenticate(f"guess-{number}", "192.0.2.1")
    with pytest.raises(TooOften, match=r"192\.0\.2\.1: try again in 60 s"):
        await tokens.authenticate("guess", "192.0.2.1")
    assert "192.0.2.1 is locked out for 60 s" in caplog.text
    assert (await tokens.authenticate(secret, "192.0.2.1")).grant.everything
    assert (await tokens.authenticate("", "192.0.2.1")).token.accessor == "anonymous"
    with pytest.raises(UnknownToken):
        await tokens.authenticate("guess", "192.0.2.2")
    clock.time += 60 * SECOND
    with pytest.raises(UnknownToken):
        await tokens.authenticate("guess", "192.0.2.1")


async def test_valid_token_from_a_disallowed_address_does_not_count_as_a_guess(
    tokens: TokenStore,
) -> None:
    secret = (await tokens.issue(token("a", "root", bound_cidrs=("10.0.0.0/8",)))).secret
    for _ in range(9):
        with pytest.raises(UnknownToken):
            await tokens.authenticate(secret, "192.0.2.1")
    assert tokens.failures.locked_for("192.0.2.1", NOW) == 0


async def test_stored_secret_is_deleted_with_its_token_or_the_parent_token(
    store: Store, tokens: TokenStore
) -> None:
    def make(tx: Transaction) -> None:
        for item in (token("a"), token("b", parent="a"), token("c")):
            tokens.add(tx, item, f"secret-{item.accessor}")
            secrets.put(tx, f"{rows.SECRETS}{item.accessor}", b"sealed")

    await store.write(make)
    await store.write(lambda tx: rows.remove(tx, "a"))
    left = store.read(lambda db: secrets.below(db, rows.SECRETS))
    assert [secret.place for secret in left] == [f"{rows.SECRETS}c"]


def noted_threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return a list that receives the thread of each construction of a grant."""
    threads: list[threading.Thread] = []
    for name in ("_grant", "workload_capabilities"):
        build = getattr(caller_cache, name)

        def noted(*given: Any, build: Any = build) -> CapabilitySet:
            threads.append(threading.current_thread())
            return build(*given)

        monkeypatch.setattr(caller_cache, name, noted)
    return threads


MANY = "\n".join(f'namespace "n{number}" {{ policy = "read" }}' for number in range(200))
TASK_IDENTITY = "header.claims.signature"


@pytest.fixture
async def task_tokens(store: Store, clock: Clock) -> AsyncIterator[TokenStore]:
    """Token store in which `TASK_IDENTITY` identifies a task of a running allocation."""

    def place(tx: Transaction) -> None:
        jobs.append_version(tx, job())
        allocations.add(tx, placed(job(), "n", "a1"), NOW)

    await store.write(place)
    workload = Workload(
        iss="",
        sub="",
        aud=[],
        iat=0,
        nbf=0,
        jti="",
        nomad_namespace="default",
        nomad_job_id="web",
        nomad_allocation_id="a1",
        nomad_group="main",
        nomad_task="main",
    )
    seal = EnvelopeCipher({1: bytes(32)})
    async with open_tokens(store, clock, seal, asks=True, workload_of=lambda _: workload) as opened:
        yield opened


@pytest.mark.parametrize("kind", ["service", "batch"])
async def test_token_created_with_a_task_identity_ends_with_the_allocation(
    task_tokens: TokenStore, store: Store, kind: str
) -> None:
    token_request = TokenRequestFields(
        maker=task_tokens.resolve(TASK_IDENTITY),
        fields=RequestFields({"type": kind, "policies": ["p"]}),
        path="auth/token/create",
        has_sudo=True,
    )
    new = store.read(lambda db: create_token(db, token_request, accessor="new", now=NOW))
    issued = await task_tokens.issue(new.token)
    assert task_tokens.resolve(issued.secret).token.allocation == "a1"
    ended = placed(job(), "n", "a1", client_status=ClientStatus.COMPLETE)
    await store.write(lambda tx: allocations.set_client(tx, ended, NOW))
    with pytest.raises(UnknownToken):
        task_tokens.resolve(issued.secret)


async def attach(store: Store, name: str, rules: str, job_id: str) -> None:
    policy = Policy(name=name, rules=rules, job_acl=JobACL(job_id=job_id))
    await store.write(lambda tx: policies.put(tx, policy))


async def test_long_grant_of_a_task_identity_is_built_once_in_a_thread(
    task_tokens: TokenStore, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await attach(store, "long", MANY, "web")
    threads = noted_threads(monkeypatch)
    assert (await task_tokens.identify(TASK_IDENTITY)).grant.may("n7", "read-job")
    assert (await task_tokens.identify(TASK_IDENTITY)).grant.may("n7", "read-job")
    await attach(store, "long", MANY.replace('"n7"', '"m7"'), "web")
    assert not (await task_tokens.identify(TASK_IDENTITY)).grant.may("n7", "read-job")
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_grant_of_many_short_policies_is_built_in_a_thread(
    tokens: TokenStore, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"missing-{number}" for number in range(100)]  # forces a lookup of each name
    issued = await tokens.issue(token("a", *names))
    threads = noted_threads(monkeypatch)
    await tokens.identify(issued.secret)
    assert threads
    assert threading.main_thread() not in threads


async def test_policies_of_other_jobs_are_not_read_for_a_task_identity(
    task_tokens: TokenStore, store: Store
) -> None:
    await attach(store, "own", READ, "web")
    await attach(store, "other", READ, "batch")
    await write_policy(store, "no-job", READ)
    damage = "UPDATE policies SET document = '{' WHERE name <> 'own'"
    await store.write(lambda tx: tx.execute(damage, {}))
    assert (await task_tokens.identify(TASK_IDENTITY)).grant.may("default", "read-job")


async def test_unreadable_policy_of_its_job_fails_a_task_identity(
    task_tokens: TokenStore, store: Store
) -> None:
    await attach(store, "own", READ, "web")
    await store.write(lambda tx: tx.execute("UPDATE policies SET document = '{'", {}))
    with pytest.raises(StorageUnreadable):
        await task_tokens.identify(TASK_IDENTITY)


async def test_detached_policy_no_longer_applies_to_a_task_identity(
    task_tokens: TokenStore, store: Store
) -> None:
    await attach(store, "own", READ, "web")
    assert (await task_tokens.identify(TASK_IDENTITY)).grant.may("default", "read-job")
    await write_policy(store, "own", READ)
    assert not (await task_tokens.identify(TASK_IDENTITY)).grant.may("default", "read-job")


async def test_long_grant_of_anonymous_callers_is_built_in_a_thread(
    tokens: TokenStore, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_policy(store, "anonymous", MANY)
    threads = noted_threads(monkeypatch)
    assert (await tokens.identify("")).grant.may("n7", "read-job")
    assert len(threads) == 1
    assert threading.main_thread() not in threads


async def test_long_grant_is_built_in_a_thread_and_follows_a_change(
    tokens: TokenStore, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_policy(store, "long", MANY)
    issued = await tokens.issue(token("a", "long"))
    threads = noted_threads(monkeypatch)
    assert (await tokens.authenticate(issued.secret)).grant.may("n7", "read-job")
    assert (await tokens.identify(issued.secret)).grant.may("n7", "read-job")
    await write_policy(store, "long", MANY.replace('"n7"', '"m7"'))
    assert not (await tokens.authenticate(issued.secret)).grant.may("n7", "read-job")
    assert len(threads) == 2
    assert threading.main_thread() not in threads


TEMPLATES = """
path "team/*" { capabilities = ["read"] }
path "team/{{identity.entity.metadata.team}}/*" { capabilities = ["update"] }
path "team/{{ identity.entity.aliases.auth_cloudid_1.name }}" { capabilities = ["deny"] }
path "app/{{identity.entity.aliases.auth_cloudid_1.metadata.app_id}}" { capabilities = ["read"] }
path "own/{{identity.entity.aliases.auth_cloudid_1.custom_metadata.x.y}}" { capabilities = ["read"] }
path "id/{{identity.groups.names.my group.id}}" { capabilities = ["read"] }
path "site/{{identity.groups.ids.g1.metadata.site}}/*" { capabilities = ["read"] }
path "vm/{{identity.entity.aliases.auth_cloudid_1.metadata.vm_name}}" { capabilities = ["read"] }
"""


async def identity(store: Store, name: str, *, vm_name: str = "vm") -> None:
    """Store an entity with an alias, and with a group that contains it through another group."""
    times = {"created_at": NOW, "updated_at": NOW}
    alias = Alias(
        id="a1",
        entity_id="e1",
        mount="auth_cloudid_1",
        name=name,
        metadata={"app_id": "app-1", "vm_name": vm_name},
        custom_metadata={"x.y": "mine"},
        **times,
    )

    def write(tx: Transaction) -> None:
        mount = Mount(path="cloudid/", type="cloudid", accessor="auth_cloudid_1", uuid="u1")
        mounts.put(tx, mount)
        entities.put(tx, Entity(id="e1", name="e", metadata={"team": "a"}, **times))
        entities.remove_alias(tx, alias.id)
        entities.put_alias(tx, alias)
        for group_id, group_name in (("g1", "my group"), ("g2", "inner")):
            group = Group(id=group_id, name=group_name, metadata={"site": "north"}, **times)
            groups.put(tx, group)
        groups.set_members(tx, "g1", ["g2"], are_groups=True)
        groups.set_members(tx, "g2", ["e1"], are_groups=False)

    await store.write(write)


async def test_templates_name_the_aliases_and_groups_of_the_entity(
    tokens: TokenStore, store: Store
) -> None:
    await identity(store, "alice")
    await write_policy(store, "templates", TEMPLATES)
    issued = await tokens.issue(token("a", "templates", entity_id="e1"))
    grant = tokens.resolve(issued.secret).grant
    expected = {
        "team/bob": ["read"],
        "team/alice": ["deny"],
        "team/a/x": ["update"],
        "app/app-1": ["read"],
        "own/mine": ["read"],
        "id/g1": ["read"],
        "site/north/x": ["read"],
        "vm/vm": ["deny"],  # the login chose this name
    }
    assert {path: grant.capabilities(path) for path in expected} == expected


async def test_a_changed_alias_is_in_force_for_the_next_request(
    tokens: TokenStore, store: Store
) -> None:
    await write_policy(store, "templates", TEMPLATES)
    await identity(store, "alice")
    issued = await tokens.issue(token("a", "templates", entity_id="e1"))
    for name, other in (("alice", "bob"), ("bob", "alice"), ("alice", "bob")):
        await identity(store, name)
        grant = tokens.resolve(issued.secret).grant
        assert (grant.capabilities(f"team/{name}"), grant.capabilities(f"team/{other}")) == (
            ["deny"],
            ["read"],
        )
    await store.write(lambda tx: groups.set_members(tx, "g2", [], are_groups=False))
    assert tokens.resolve(issued.secret).grant.capabilities("id/g1") == ["deny"]


@pytest.mark.parametrize("value", ["*", "+", "a/b", "{{", ""])
async def test_template_value_cannot_be_a_pattern(
    tokens: TokenStore, store: Store, value: str
) -> None:
    await identity(store, value)
    rules = 'path "x/{{identity.entity.aliases.auth_cloudid_1.name}}" { capabilities = ["read"] }'
    await write_policy(store, "templates", rules)
    issued = await tokens.issue(token("a", "templates", entity_id="e1"))
    assert tokens.resolve(issued.secret).grant.paths.rules() == []
