"""Secrets in the stored errors of a task: masked before the write."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from daemon.variables import change
from storage.queries.variables import VariableLock
from storage.records.allocation import StoredTaskEvent
from storage.records.task import Identity, SecretsConfig, Template
from storage.store import Store, open_store
from tests.parts.runner.test_secret_token import put_role
from tests.parts.runner.test_survival import reopened
from tests.parts.runner.world import SEAL, Pipe, World, batch, open_world, script
from tests.samples import NOW

PHRASE = "correct horse battery"
READS = Template(
    embedded_tmpl='P="{{ with nomadVar `nomad/jobs/job` }}{{ .phrase }}{{ end }}"\n',
    dest_path="secrets/env",
    envvars=True,
    change_mode="noop",
)
LONGER = "x" * 2000


@pytest.fixture
async def world(store: Store, data_dir: Path) -> AsyncIterator[World]:
    async with open_world(store, data_dir) as opened:
        yield opened


def ends(world: World, alloc_id: str) -> list[StoredTaskEvent]:
    return [
        stored_event
        for stored_event in world.stored_events(alloc_id)
        if stored_event.type == "Terminated"
    ]


async def kept(world: World, text: str) -> str:
    """Return the stored errors of a task that reads a variable."""
    await world.put_variable("nomad/jobs/job", phrase=PHRASE)
    alloc_id = await world.place(batch(script(text, templates=[READS])))
    await world.until_done(alloc_id)
    return ends(world, alloc_id)[-1].steward_stderr


async def test_value_of_a_variable_is_masked_in_error_lines(world: World) -> None:
    assert await kept(world, 'echo "no login with $P" >&2; exit 1') == (
        "no login with ‹masked*********›\n"
    )


async def test_value_that_starts_before_the_stored_lines_is_masked(world: World) -> None:
    text = f'printf "before $P" >&2; printf %s {LONGER} >&2; echo {"y" * 32} >&2; exit 1'
    assert "battery" not in await kept(world, text)


async def test_changed_value_is_masked(world: World, pipe: Pipe) -> None:
    await world.put_variable("nomad/jobs/job", phrase=PHRASE)
    waits = 'while grep -q "$P" secrets/env; do sleep 0.05; done'
    text = f'echo > {pipe.path}; {waits}; echo "$P" >&2; exit 1'
    alloc_id = await world.place(batch(script(text, templates=[READS])))
    await pipe.line()
    await world.put_variable("nomad/jobs/job", phrase="tr0ub4dor and 3")
    await world.until_done(alloc_id)
    assert ends(world, alloc_id)[-1].steward_stderr == "‹masked*********›\n"


async def test_tokens_of_a_task_are_masked(world: World) -> None:
    await put_role(world)
    identity = Identity(name="default", env=True, file=True)
    text = 'cat secrets/* >&2; echo "$NOMAD_TOKEN" "$VAULT_TOKEN" >&2; exit 1'
    task = script(text, identity=identity, secrets_config=SecretsConfig(role="web"))
    alloc_id = await world.place(batch(task))
    await world.until_done(alloc_id)
    (end,) = ends(world, alloc_id)
    assert end.steward_stderr.count("‹masked") >= 2
    assert not set(end.steward_stderr) - set("‹masked›* \n\ufffd")


async def test_value_changed_while_no_daemon_ran_is_masked(data_dir: Path, pipe: Pipe) -> None:
    async with reopened(data_dir) as world:
        await world.put_variable("nomad/jobs/job", phrase=PHRASE)
        waits = f"until [ -e {pipe.path}.go ]; do sleep 0.05; done"
        text = f'echo > {pipe.path}; {waits}; echo "$P" >&2; exit 1'
        alloc_id = await world.place(batch(script(text, templates=[READS])))
        await pipe.line()
    async with open_store(data_dir, cluster_id="cluster", now=NOW) as store:
        name = change.VariableKey("default", "nomad/jobs/job")
        items, lock = {"phrase": "tr0ub4dor and 3"}, VariableLock()
        await change.put(store, SEAL, name, items, expected=None, lock=lock, now=NOW)
    async with reopened(data_dir) as world:
        await trio.Path(f"{pipe.path}.go").touch()
        await world.until_done(alloc_id)
        assert ends(world, alloc_id)[-1].steward_stderr == "‹masked*********›\n"
        assert PHRASE in await world.secrets(alloc_id)


async def test_secrets_are_stored_before_the_task_starts(world: World, pipe: Pipe) -> None:
    await put_role(world)
    await world.put_variable("nomad/jobs/job", phrase=PHRASE)
    identity = Identity(name="default", env=True, file=True)
    task = script(
        f'echo "$NOMAD_TOKEN $VAULT_TOKEN" > {pipe.path}; exec sleep 600',
        identity=identity,
        secrets_config=SecretsConfig(role="web"),
        templates=[READS],
    )
    alloc_id = await world.place(batch(task))
    printed = (await pipe.line()).split()
    assert sorted(await world.secrets(alloc_id)) == sorted([PHRASE, *printed])
