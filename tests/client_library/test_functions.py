"""Functions as jobs: typed arguments and results, and failures with their reasons."""

import pytest
import trio
from steward_client import Client, TaskFailed, sync, task
from steward_client.call import call, find
from steward_client.functions import Arguments

from tests.client_library.programs import Backend
from tests.client_library.remote import Point, divide, move, unencodable, vanish
from tests.service.daemon import Steward


async def test_function_runs_as_a_job_with_typed_values(backend: Backend, steward: Steward) -> None:
    async def program(client: Client) -> list[object]:
        point = await move.run(client, Point(1, 7), 2, times=3)
        quotients = await divide.map(client, [(6, 3), (1, 4)])
        children = [job.parent_id for job in await client.jobs(prefix="tests.client_library")]
        return [point, quotients, sorted(filter(None, children))]

    parents = sorted([move.job().id, divide.job().id, divide.job().id])
    assert await backend.with_client(steward, program) == [Point(7, 7), [2.0, 0.25], parents]


async def test_exception_and_signal_are_failures_with_their_reason(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client) -> tuple[TaskFailed, TaskFailed]:
        with pytest.raises(TaskFailed) as raised:
            await divide.run(client, 1, 0)
        with pytest.raises(TaskFailed) as killed:
            await vanish.run(client)
        return raised.value, killed.value

    raised, killed = await backend.with_client(steward, program)
    assert "divide raised ZeroDivisionError: division by zero" in str(raised)
    assert "return a / b" in raised.remote_traceback
    assert "signal 9 and without a result" in str(killed)


def test_arguments_are_converted_and_checked() -> None:
    moved = call(move.function, Arguments([{"x": 1}], {"by": 2}))
    assert bytes(moved.value) == b'{"x":3,"y":0}'
    refused = call(move.function, Arguments([{"x": "one"}], {"by": 2}))
    assert refused.failure is not None
    assert refused.failure.message == "Expected `int`, got `str` - at `$.x`"


def test_result_that_is_not_json_is_a_failure() -> None:
    outcome = call(unencodable.function, Arguments())
    assert outcome.failure is not None
    assert "object" in outcome.failure.message


def test_only_decorated_functions_are_found() -> None:
    assert find(move.name) is move.function
    with pytest.raises(TypeError, match="has no @task decorator"):
        find("os:getpid")


def test_function_that_a_task_cannot_import_is_refused() -> None:
    def inner() -> None: ...

    with pytest.raises(ValueError, match="move it to the top level of a module"):
        task(inner)


async def test_wrong_arguments_are_refused_before_a_job_starts() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'by'"):
        await move.submit(Client("http://nowhere"), Point(1))


def test_different_options_create_a_different_job() -> None:
    other = task(memory_mb=99)(divide.function)
    assert other.job().id != divide.job().id
    assert other(8, 2) == 4


def test_retries_become_a_reschedule_policy() -> None:
    policies = [item.job().groups[0].reschedule_policy for item in (divide, unencodable)]
    assert [policy and policy.attempts for policy in policies] == [0, 1]


async def test_function_runs_from_plain_python(steward: Steward) -> None:
    def program() -> Point:
        with sync.Client(steward.address) as client:
            return client.use(move.run, Point(1), 1)

    assert await trio.to_thread.run_sync(program) == Point(2, 0)
