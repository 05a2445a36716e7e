"""Variables and locks: check-and-set, renewal, and the loss of a lock."""

import anyio
import pytest
from steward_client import Client, Conflict, LockLost

from tests.client_library.programs import Backend
from tests.service.daemon import Steward


async def test_variable_changes_only_from_the_expected_index(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        assert await client.variable("app/a") is None
        made = await client.put_variable("app/a", {"k": "v"}, cas=0)
        with pytest.raises(Conflict):
            await client.put_variable("app/a", {"k": "w"}, cas=0)
        await client.put_variable("app/a", {"k": "x"}, cas=made.modify_index)
        read = await client.variable("app/a")
        listed = await client.variables(prefix="app/")
        await client.delete_variable("app/a")
        return read, listed, await client.variable("app/a")

    read, listed, gone = await backend.with_client(steward, program)
    assert (read.items, [item.path for item in listed], gone) == ({"k": "x"}, ["app/a"], None)


async def test_lock_excludes_other_clients_until_its_block_ends(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        async with client.lock("locks/a") as lock:
            with pytest.raises(Conflict):
                async with client.lock("locks/a", wait=False):
                    pass
            await client.put_variable("locks/a", {"step": "1"}, lock=lock)
        async with client.lock("locks/a", wait=False) as again:
            return again.items

    assert await backend.with_client(steward, program) == {"step": "1"}


async def test_error_of_the_block_is_raised_after_the_lock_is_released(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        with pytest.raises(ZeroDivisionError):
            async with client.lock("locks/b"):
                1 / 0  # noqa: B018  # raises
        async with client.lock("locks/b", wait=False):
            return True

    assert await backend.with_client(steward, program)


async def test_lost_lock_cancels_the_block(backend: Backend, steward: Steward) -> None:
    async def program(client: Client):
        async with client.lock("locks/c", ttl=10) as lock:
            body = {"Path": "locks/c", "Lock": {"ID": lock.id}}
            query = {"lock-release": True}
            await client.request("PUT", "/v1/var/locks/c", query=query, body=body)
            await anyio.sleep_forever()

    with pytest.raises(LockLost):
        await backend.with_client(steward, program)
