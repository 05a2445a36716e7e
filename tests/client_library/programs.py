"""Programs under test: they run in a thread, with a separate event loop."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import anyio
import trio
from steward_client import (
    Client,
    DispatchPayload,
    EphemeralDisk,
    Group,
    Job,
    LogConfig,
    Parameterized,
    ReschedulePolicy,
    Resources,
    RestartPolicy,
    Task,
)

from tests.service.daemon import Steward
from tests.time_limits import HAPPENS_WITHIN

T = TypeVar("T")

SMALL = Resources(cpu=20, memory_mb=20)


class Backend:
    """A library for event loops, chosen by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, program: Callable[[], Awaitable[T]]) -> T:
        """Run a program to its end in another thread, within the time limit of tests."""
        return await trio.to_thread.run_sync(partial(self._run, program), abandon_on_cancel=True)

    def _run(self, program: Callable[[], Awaitable[T]]) -> T:
        async def limited() -> T:
            with anyio.fail_after(HAPPENS_WITHIN):
                return await program()

        return anyio.run(limited, backend=self.name)

    async def with_client(
        self, steward: Steward, program: Callable[[Client], Awaitable[T]], **options: object
    ) -> T:
        """Run a program with a client of the daemon."""

        async def connected() -> T:
            async with Client(steward.address, token=steward.token, **options) as client:
                return await program(client)

        return await self.run(connected)


def shell(job_id: str, script: str, *, job_type: str = "batch", **fields: object) -> Job:
    """Return a job that runs a shell script once."""
    payload = fields.pop("payload", None)
    task = Task(
        name="main",
        driver="raw_exec",
        config={"command": "/bin/sh", "args": ["-c", script]},
        resources=SMALL,
        dispatch_payload=payload,
        log_config=LogConfig(max_files=1, max_file_size_mb=5),
    )
    group = Group(
        name="web",
        tasks=[task],
        restart_policy=RestartPolicy(attempts=0, mode="fail"),
        reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
        ephemeral_disk=EphemeralDisk(size_mb=20),
    )
    return Job(id=job_id, type=job_type, groups=[group], **fields)


def parameterized(job_id: str, script: str) -> Job:
    """Return a parameterized job whose script finds its payload in `local/in`."""
    return shell(
        job_id,
        script,
        parameterized=Parameterized(payload="optional", meta_optional=["who"]),
        payload=DispatchPayload(file="in"),
    )
