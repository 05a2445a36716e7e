"""A program dispatches many children, the daemon is killed in the middle, and each runs once."""

from pathlib import Path

import trio
from steward_client import Client, Dispatch

from tests.client_library.programs import Backend, parameterized
from tests.service.daemon import Steward

CHILDREN = 60
ENDED = 5  # children that have ended before the kill


async def test_each_result_arrives_once_after_a_kill_of_the_daemon(
    backend: Backend, steward: Steward, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    script = f'cat local/in >>"{ledger}"; cat local/in'

    async def program(client: Client) -> list[bytes]:
        requests = [
            Dispatch(payload=f"{number}\n".encode(), idempotency_token=f"token-{number}")
            for number in range(CHILDREN)
        ]
        children = await client.dispatch_many("many", requests)
        results = await client.wait_all(children)
        return [result.tasks["main"].stdout for result in results]

    outputs: list[bytes] = []

    async def run() -> None:
        outputs.extend(await backend.with_client(steward, program))

    await backend.with_client(steward, lambda client: client.run(parameterized("many", script)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await steward.until(
            "/v1/jobs",
            lambda jobs: sum(job["Status"] == "dead" for job in jobs) >= ENDED,
            prefix="many/",
        )
        await steward.kill_and_restart()
    assert outputs == [f"{number}\n".encode() for number in range(CHILDREN)]
    assert sorted(map(int, ledger.read_text().split())) == [*range(CHILDREN)]
