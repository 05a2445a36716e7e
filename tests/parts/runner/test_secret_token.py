"""Vault tokens of tasks: issued, renewed, replaced, and revoked with the allocation."""

import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from daemon.acl.task_tokens import VaultTaskToken
from daemon.runner.alloc.task_runner import TaskRunner
from daemon.runner.core.task_dir import directories
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.setup.vault_token import VaultTokenRenewer
from daemon.runner.setup.workload_identity import WorkloadIdentities
from storage.errors import Refused, UnknownToken
from storage.queries import policies, tokens
from storage.records.acl import JobACL, Policy, Token, TokenRole
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND
from storage.records.task import Identity, RestartPolicy, SecretsConfig
from storage.records.workload import Workload
from storage.store import Store
from tests.launchers import Direct
from tests.parts.runner.world import Pipe, World, batch, open_world, script, state_of
from tests.unit.runner.placements import placed

NEVER = 10**19  # nanoseconds
SHOWN = 'cat secrets/vault_token; echo; stat -c %a secrets/vault_token; echo "$VAULT_TOKEN"'


@pytest.fixture
async def world(store: Store, data_dir: Path) -> AsyncIterator[World]:
    async with open_world(store, data_dir) as opened:
        yield opened


def asking(**fields: Any) -> SecretsConfig:
    return SecretsConfig(**fields)


async def put_role(world: World, **fields: Any) -> None:
    role = TokenRole(name="web", **{"allowed_policies": ("reader",), **fields})
    await world.store.write(lambda tx: tokens.put_role(tx, role))


def of_tasks(world: World) -> list[Token]:
    return [token for token in world.store.read(tokens.list_all) if token.allocation]


async def said_by(world: World, block: SecretsConfig, **fields: Any) -> list[str]:
    """Return the output of a task with this block."""
    alloc_id = await world.place(batch(script(SHOWN, secrets_config=block), **fields))
    await world.until_done(alloc_id)
    return world.output(alloc_id).splitlines()


async def test_a_task_gets_a_token_of_its_role(world: World) -> None:
    await put_role(world)
    in_file, mode, in_environment = await said_by(world, asking(role="web"))
    assert in_file == in_environment
    assert mode == "600"
    (token,) = of_tasks(world)
    assert token.policies == ("default", "reader")
    assert token.meta is not None
    assert token.meta["task"] == "main"


async def test_token_is_invalid_after_its_allocation_has_ended(world: World, pipe: Pipe) -> None:
    await put_role(world)
    told = f'echo "$STEWARD_TOKEN" > {pipe.path}; exec sleep 600'
    alloc_id = await world.place(batch(script(told, secrets_config=asking(role="web"))))
    secret = await pipe.line()
    assert world.tokens.resolve(secret).token.allocation == alloc_id
    await world.stop(alloc_id)
    await world.until_done(alloc_id)
    with pytest.raises(UnknownToken):
        world.tokens.resolve(secret)


async def test_token_without_a_role_has_the_policies_that_name_the_job(world: World) -> None:
    policy = Policy(name="for-job", rules="", job_acl=JobACL(job_id="job"))
    await world.store.write(lambda tx: policies.put(tx, policy))
    await said_by(world, asking())
    (token,) = of_tasks(world)
    assert token.policies == ("default", "for-job")
    assert token.period


async def test_token_has_the_policies_named_by_the_job(world: World) -> None:
    await said_by(world, asking(policies=["reader"]))
    (token,) = of_tasks(world)
    assert token.policies == ("default", "reader")


async def test_token_can_be_omitted_from_file_and_environment(world: World) -> None:
    assert (await said_by(world, asking(disable_file=True)))[0] == ""
    (in_file, _, in_environment) = await said_by(world, asking(env=False), job_id="other")
    assert (bool(in_file), in_environment) == (True, "")


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (asking(role="none"), 'the task got no Vault token: there is no role "none"'),
        (
            asking(policies=["root"]),
            'the task got no Vault token: a task cannot have the policy "root"',
        ),
    ],
)
async def test_failed_token_request_fails_the_task(
    world: World, block: SecretsConfig, problem: str
) -> None:
    alloc_id = await world.place(batch(script("true", secrets_config=block)))
    await world.until_status(alloc_id, "failed")
    assert ("Secrets Error", problem) in world.told(alloc_id)
    (event,) = [event for event in world.events(alloc_id) if event.type == "Secrets Error"]
    assert (event.secrets_error, event.vault_error) == (problem, problem)


async def test_revoked_token_is_replaced_and_the_task_notified(world: World, pipe: Pipe) -> None:
    await put_role(world, token_period=2)
    told = f"cat secrets/vault_token > {pipe.path}; echo > {pipe.path}; exec sleep 600"
    block = asking(role="web", change_mode="restart")
    alloc_id = await world.place(batch(script(told, secrets_config=block)))
    first = await pipe.line()
    (token,) = of_tasks(world)
    await world.store.write(partial(tokens.remove, accessor=token.accessor))
    assert await pipe.line() != first
    await world.until(alloc_id, lambda item: state_of(item).restarts)


class Lender:
    """Issues numbered tokens; each is valid for an hour, and renewable `prolongs` times."""

    def __init__(self, prolongs: int) -> None:
        self.made: list[str] = []
        self.renewed: list[str] = []
        self.ended: list[str] = []
        self._prolongs = prolongs

    def _held(self, accessor: str) -> VaultTaskToken:
        now = now_of_trio()
        return VaultTaskToken(
            accessor=accessor,
            secret=f"secret-{accessor}",
            ttl=3600 * SECOND,
            renewed_at=now,
            expires_at=now + 3600 * SECOND,
        )

    async def make(self, workload: Workload, block: SecretsConfig) -> VaultTaskToken:
        self.made.append(str(len(self.made)))
        return self._held(self.made[-1])

    async def renew(self, accessor: str) -> VaultTaskToken:
        if self.renewed.count(accessor) == self._prolongs:
            raise Refused("it has lived for long enough")
        self.renewed.append(accessor)
        return self._held(accessor)

    def find(self, accessor: str) -> VaultTaskToken | None:
        return self._held(accessor)

    def is_secret(self, accessor: str, secret: str) -> bool:
        return secret == f"secret-{accessor}"

    async def end(self, accessor: str) -> None:
        self.ended.append(accessor)


def now_of_trio() -> int:
    return int(trio.current_time() * SECOND)


def kept_by(
    lender: Lender,
    root: Path,
    block: SecretsConfig,
    note: Callable[[TaskEvent], None] = lambda event: None,
) -> VaultTokenRenewer:
    """Return the token of a task with this block."""
    (root / "main/secrets").mkdir(parents=True, exist_ok=True)
    job = batch(script("true", secrets_config=block))
    (group,) = job.task_groups or ()
    instance = TaskInstance(allocation=placed(job, "node", "alloc"), job=job, group=group)
    files = TaskFiles(
        launcher=Direct(root.parent),
        allocation=root.name,
        task="main",
        places=directories(str(root), "main"),
    )
    return VaultTokenRenewer(lender, lambda: instance, "main", files, now_of_trio, note)


async def test_token_is_renewed_up_to_its_limit_and_then_replaced(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lender = Lender(prolongs=3)
    token = kept_by(lender, tmp_path, asking(change_mode="signal", change_signal="SIGHUP"))
    await token.deliver()
    (wish,) = await token.renew_when_due()
    assert (wish.mode, wish.signal) == ("signal", "SIGHUP")
    assert (lender.renewed, lender.made, lender.ended) == (["0", "0", "0"], ["0", "1"], ["0"])
    assert (tmp_path / "main/secrets/vault_token").read_text() == "secret-1"
    assert set(token.environment.values()) == {"secret-1"}


@pytest.mark.parametrize("mode", ["restart", "signal", "noop"])
async def test_task_is_notified_of_a_replaced_token_with_its_change_mode(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, mode: str
) -> None:
    lender = Lender(prolongs=0)
    token = kept_by(lender, tmp_path, asking(change_mode=mode))
    await token.deliver()
    told = [(await token.renew_when_due())[0].mode for _ in range(3)]
    assert told == [mode] * 3
    assert lender.ended == ["0", "1", "2"]


async def test_failed_replacement_of_a_token_is_an_event_and_retried(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    class Reluctant(Lender):
        async def make(self, workload: Workload, block: SecretsConfig) -> VaultTaskToken:
            if len(task_events) < 2 and self.made:
                raise Refused('there is no role "web"')
            return await super().make(workload, block)

    task_events: list[TaskEvent] = []
    lender = Reluctant(prolongs=0)
    token = kept_by(lender, tmp_path, asking(), task_events.append)
    await token.deliver()
    began = trio.current_time()
    assert [change_action.description for change_action in await token.renew_when_due()] == [
        "Vault: new Vault token acquired"
    ]
    assert [(task_event.type, task_event.secrets_error) for task_event in task_events] == [
        ("Secrets Error", 'the task got no new Vault token: there is no role "web"')
    ] * 2
    assert trio.current_time() - began == 1800 + 30 + 30
    assert (lender.made, lender.ended) == (["0", "1"], ["0"])


async def test_token_allowed_to_expire_is_not_renewed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lender = Lender(prolongs=3)
    token = kept_by(lender, tmp_path, asking(allow_token_expiration=True))
    await token.deliver()
    with trio.move_on_after(7200):
        await token.renew_when_due()
    assert (lender.renewed, lender.made) == ([], ["0"])


async def test_undeliverable_token_is_revoked(tmp_path: Path) -> None:
    lender = Lender(prolongs=3)
    token = kept_by(lender, tmp_path, asking())
    (tmp_path / "main/secrets/vault_token").mkdir()
    with pytest.raises(OSError, match="directory"):
        await token.deliver()
    assert (lender.made, lender.ended) == (["0"], ["0"])


async def test_token_is_replaced_after_a_kill_during_its_delivery(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender = Lender(prolongs=3)
    token = kept_by(lender, tmp_path, asking())
    await token.deliver()

    async def write_once(files: TaskFiles, kind: str, text: str | None) -> None:
        if text is not None:
            raise KeyboardInterrupt
        await note(files, "token", text)

    note = TaskFiles.write_note
    with monkeypatch.context() as patch:
        patch.setattr(TaskFiles, "write_note", write_once)
        with pytest.raises(KeyboardInterrupt):
            await token.deliver()
    later = kept_by(lender, tmp_path, asking())
    await later.recall()
    assert (await later.renew_when_due())[0].mode == "restart"
    assert (lender.made, lender.renewed) == (["0", "1"], [])
    assert (tmp_path / "main/secrets/vault_token").read_text() == "secret-1"


@pytest.mark.parametrize("put", ["", "secret-1", "a\0b", "pipe"])
async def test_replaced_token_file_is_never_read_as_a_token(tmp_path: Path, put: str) -> None:
    lender = Lender(prolongs=3)
    await kept_by(lender, tmp_path, asking()).deliver()
    path = tmp_path / "main/secrets/vault_token"
    path.unlink()
    if put == "pipe":
        os.mkfifo(path)
    else:
        path.write_text(put)
    later = kept_by(lender, tmp_path, asking())
    await later.recall()
    assert later.environment == {}
    await later.deliver()
    assert set(later.environment.values()) == {f"secret-{lender.made[-1]}"}


async def test_token_survives_a_restart_of_the_daemon(
    store: Store, data_dir: Path, pipe: Pipe
) -> None:
    policy = RestartPolicy(attempts=1, interval=600 * SECOND, delay=0, mode="fail")
    text = f'echo "$VAULT_TOKEN" > {pipe.path}; while [ ! -e local/go ]; do sleep 0.1; done; exit 1'
    async with open_world(store, data_dir) as world:
        task = script(text, secrets_config=asking(), restart_policy=policy)
        alloc_id = await world.place(batch(task))
        first = await pipe.line()
        await world.until_status(alloc_id, "running")
    async with open_world(store, data_dir) as world:
        (world.directory(alloc_id) / "main/local/go").touch()
        assert await pipe.line() == first
        await world.until_status(alloc_id, "failed")
        assert len(of_tasks(world)) == 1


async def test_change_action_is_pending_in_a_later_daemon_until_it_has_run(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lender = Lender(prolongs=0)
    block = asking(change_mode="signal", change_signal="SIGHUP")
    token = kept_by(lender, tmp_path, block)
    await token.deliver()
    await token.renew_when_due()
    later = kept_by(lender, tmp_path, block)
    await later.recall()
    began = trio.current_time()
    assert [action.signal for action in await later.renew_when_due()] == ["SIGHUP"]
    assert trio.current_time() == began
    await later.forget_action()
    last = kept_by(lender, tmp_path, block)
    await last.recall()
    await last.renew_when_due()
    assert trio.current_time() - began == 1800


@pytest.mark.parametrize("source", ["token", "identity"])
async def test_task_is_notified_by_a_later_daemon(
    store: Store, data_dir: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    path = {"token": "secrets/vault_token", "identity": "secrets/nomad_own.jwt"}[source]
    text = (
        f"trap 'echo told >{pipe.path}' USR1; cp {path} local/first; echo ready >{pipe.path};"
        f" while cmp -s {path} local/first; do sleep 0.05; done; echo renewed >{pipe.path};"
        " while :; do sleep 0.05; done"
    )
    change: dict[str, Any] = {"change_mode": "signal", "change_signal": "SIGUSR1"}
    inputs: dict[str, dict[str, Any]] = {
        "token": {"secrets_config": asking(role="web", **change)},
        "identity": {"identities": [Identity(name="own", file=True, ttl=2 * SECOND, **change)]},
    }

    async def die(*_: object) -> None:
        await trio.sleep_forever()

    with monkeypatch.context() as patch:
        patch.setattr(TaskRunner, "_run_change_actions", die)
        async with open_world(store, data_dir) as world:
            await put_role(world, token_period=2)
            alloc_id = await world.place(batch(script(text, **inputs[source])))
            assert await pipe.line() == "ready"
            await world.until_status(alloc_id, "running")
            for token in of_tasks(world):
                await world.store.write(partial(tokens.remove, accessor=token.accessor))
            assert await pipe.line() == "renewed"
    monkeypatch.setattr(WorkloadIdentities, "next_renewal", lambda _: None)
    monkeypatch.setattr(VaultTokenRenewer, "_due", lambda _: NEVER)
    async with open_world(store, data_dir) as world:
        assert await pipe.line() == "told"
        await world.until(alloc_id, lambda _: "Signaling" in world.types(alloc_id))
