"""The synchronous client has every method, and works from plain threads."""

import inspect
from functools import partial

import pytest
import trio
from steward_client import Client, Conflict, sync

from tests.client_library.programs import parameterized, shell
from tests.service.daemon import Steward

METHODS = [name for name in vars(Client) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_synchronous_method_has_the_same_parameters(name: str) -> None:
    of_loop, of_thread = (
        list(inspect.signature(getattr(kind, name)).parameters.values())
        for kind in (Client, sync.Client)
    )
    assert [(item.name, item.kind, item.default) for item in of_thread] == [
        (item.name, item.kind, item.default) for item in of_loop
    ]


async def in_thread(steward: Steward, program) -> object:
    def connected() -> object:
        with sync.Client(steward.address) as client:
            return program(client)

    return await trio.to_thread.run_sync(connected)


async def test_synchronous_client_runs_jobs_and_reads_streams(steward: Steward) -> None:
    def program(client: sync.Client) -> list[object]:
        run = client.run(shell("plain", "echo one"))
        statuses = [item.allocation.client_status for item in client.follow(run) if item.allocation]
        result = client.wait(run)
        alloc_id = result.allocations[0].allocation.id
        log = b"".join(client.logs(alloc_id, "main"))
        first = next(iter(client.events({"Job": "plain"}, index=1)))
        return [statuses[-1], result.tasks["main"].exit_code, log, first.key]

    assert await in_thread(steward, program) == ["complete", 0, b"one\n", "plain"]


async def test_synchronous_client_handles_children_locks_and_commands(steward: Steward) -> None:
    def program(client: sync.Client) -> list[object]:
        client.run(parameterized("par", "cat local/in"))
        child = client.dispatch("par", payload=b"x")
        with client.lock("a/b") as lock:
            client.put_variable("a/b", {"k": "v"}, lock=lock)
            with pytest.raises(Conflict):
                client.put_variable("a/b", {"k": "w"})
        held = client.variable("a/b")
        run = client.run(shell("target", "sleep 600", job_type="service"))
        for _ in client.follow(run):
            pass
        alloc_id = client.allocations("target")[0].id
        with client.exec(alloc_id, ["/bin/cat"], task="main") as session:
            session.send(b"ping")
            session.end_input()
            pieces = b"".join(piece.data for piece in session)
            code = session.exit_code
        return [client.wait(child).tasks["main"].stdout, held and held.items, pieces, code]

    assert await in_thread(steward, partial(program)) == [b"x", {"k": "v"}, b"ping", 0]
