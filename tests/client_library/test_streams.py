"""Events, logs and exec sessions: each piece arrives once, even if the daemon is killed."""

from contextlib import aclosing

import pytest
import trio
from steward_client import Allocation, ApiError, Client, ExecFailed, NotFound

from tests.client_library.programs import Backend, shell
from tests.service.daemon import Steward

JOBS = 12


async def test_events_continue_without_a_gap_after_a_kill(
    backend: Backend, steward: Steward
) -> None:
    seen: list[str] = []

    async def read(client: Client) -> None:
        async with aclosing(client.events({"Job": "*"}, index=1)) as events:
            async for event in events:
                seen.append(event.key)
                if event.key == "last":
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.with_client, steward, read)
        for number in range(JOBS):
            await steward.register({"ID": f"before-{number}", "TaskGroups": [group()]})
        await steward.kill_and_restart()
        for number in range(JOBS):
            await steward.register({"ID": f"after-{number}", "TaskGroups": [group()]})
        await steward.register({"ID": "last", "TaskGroups": [group()]})
    expected = [f"before-{number}" for number in range(JOBS)]
    expected += [f"after-{number}" for number in range(JOBS)]
    assert seen == [*expected, "last"]


def group() -> dict[str, object]:
    task = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    return {"Name": "web", "Count": 0, "Tasks": [task]}


async def test_log_continues_after_a_kill_with_each_byte_once(
    backend: Backend, steward: Steward
) -> None:
    script = 'echo one; while [ ! -e "$NOMAD_ALLOC_DIR/go" ]; do sleep 0.05; done; echo two'
    run = await backend.with_client(steward, lambda client: client.run(shell("logged", script)))
    (allocation,) = await steward.allocations(run.job_id, "running")
    pieces: list[bytes] = []
    first, token = trio.Event(), trio.lowlevel.current_trio_token()

    async def read(client: Client) -> None:
        async with aclosing(client.logs(allocation["ID"], "main")) as log:
            async for piece in log:
                pieces.append(piece)
                token.run_sync_soon(first.set)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.with_client, steward, read)
        await first.wait()
        await steward.kill_and_restart()
        (shared,) = steward.data_dir.glob(f"**/{allocation['ID']}/alloc")
        (shared / "go").touch()
    assert b"".join(pieces) == b"one\ntwo\n"


async def test_command_in_a_task_has_streams_and_an_exit_code(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        await client.run(shell("target", "sleep 600", job_type="service"))
        alloc_id = (await steward_allocations(client))[0].id
        exec_result = await client.exec_run(
            alloc_id,
            ["/bin/sh", "-c", "cat; echo err >&2; exit 4"],
            task="main",
            stdin=b"x" * 100_000,
        )
        async with client.exec(alloc_id, ["/bin/cat"], task="main") as session:
            await session.send(b"ping")
            piece = await anext(session)
            await session.end_input()
            rest = [item async for item in session]
        return exec_result, piece, rest, session.exit_code

    async def steward_allocations(client: Client):
        async for found in client.watch("/v1/job/target/allocations", list[dict[str, object]]):
            if [alloc["ClientStatus"] for alloc in found] == ["running"]:
                return await client.allocations("target")
        raise AssertionError

    whole, piece, rest, code = await backend.with_client(steward, program)
    assert (whole.exit_code, whole.stdout, whole.stderr) == (4, b"x" * 100_000, b"err\n")
    assert (piece.stream, piece.data, rest, code) == ("stdout", b"ping", [], 0)


async def test_refused_session_has_the_reason(backend: Backend, steward: Steward) -> None:
    async def program(client: Client):
        async with client.exec("00000000-0000-0000-0000-000000000000", ["a"], task="b") as session:
            await anext(session)

    with pytest.raises((ApiError, ExecFailed), match=r"(?i)alloc"):
        await backend.with_client(steward, program)


async def test_missing_allocation_ends_the_log_with_an_error(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        async for _ in client.logs("00000000-0000-0000-0000-000000000000", "main"):
            pass

    with pytest.raises(NotFound):
        await backend.with_client(steward, program)


async def test_operators_socket_serves_requests_and_sessions(
    backend: Backend, steward: Steward
) -> None:
    async def program() -> str:
        async with Client(f"unix://{steward.data_dir}/steward.sock") as client:
            await client.run(shell("target", "sleep 600", job_type="service"))
            async for found in client.watch("/v1/job/target/allocations", list[Allocation]):
                if [item.client_status for item in found] == ["running"]:
                    done = await client.exec_run(found[0].id, ["/bin/echo", "x"], task="main")
                    return done.stdout.decode()
        raise AssertionError

    assert await backend.run(program) == "x\n"
