"""Jobs: from HCL or builders, planned, run, followed and awaited."""

import msgspec
import pytest
from steward_client import BadRequest, Client, NotFound

from tests.client_library.programs import Backend, parameterized, shell
from tests.service.daemon import Steward

HCL = """
variable "word" { default = "nothing" }
job "from-hcl" {
  type = "batch"
  group "g" {
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/echo"
        args    = [var.word]
      }
      resources {
        cpu    = 20
        memory = 20
      }
    }
  }
}
"""


async def test_job_file_runs_with_its_variables(backend: Backend, steward: Steward) -> None:
    async def program(client: Client):
        job = await client.parse(HCL, flags={"word": "hello"})
        run = await client.run(job)
        return await client.wait(run)

    result = await backend.with_client(steward, program)
    assert result.succeeded
    assert result.tasks["main"].stdout == b"hello\n"
    submission = await steward.get("/v1/job/from-hcl/submission", version=0)
    assert (submission["Source"], submission["VariableFlags"]) == (HCL, {"word": "hello"})


async def test_error_in_a_job_file_names_the_line(backend: Backend, steward: Steward) -> None:
    with pytest.raises(BadRequest, match=r"input\.hcl:2"):
        await backend.with_client(steward, lambda client: client.parse('job "a" {\n  x = \n}'))


async def test_plan_describes_the_change_without_a_registration(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        plan = await client.plan(shell("planned", "true"))
        with pytest.raises(NotFound):
            await client.job("planned")
        await client.run(shell("planned", "true"), enforce_index=plan.job_modify_index)
        return plan, await client.plan(shell("planned", "echo"))

    first, second = await backend.with_client(steward, program)
    assert first.annotations.desired_updates["web"].place == 1
    assert first.diff.type == "Added"
    assert second.diff.type == "Edited"
    assert second.job_modify_index > 0


async def test_failed_job_has_exit_code_and_both_streams(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        run = await client.run(shell("failing", "echo out; echo err >&2; exit 3"))
        return await client.wait(run)

    result = await backend.with_client(steward, program)
    task = result.tasks["main"]
    assert not result.succeeded
    assert (task.exit_code, task.failed, task.stdout, task.stderr) == (3, True, b"out\n", b"err\n")


async def test_time_limit_fails_the_job(backend: Backend, steward: Steward) -> None:
    async def program(client: Client):
        job = shell("late", "sleep 600")
        (group,) = job.groups
        limited = msgspec.structs.replace(group, max_run_duration=10**9)
        return await client.wait(await client.run(msgspec.structs.replace(job, groups=[limited])))

    result = await backend.with_client(steward, program)
    assert [one.allocation.client_status for one in result.allocations] == ["complete"]
    assert not result.succeeded


async def test_workflow_run_determines_the_success_of_the_job(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        job = shell("etl", "test $NOMAD_ALLOC_INDEX != 1")
        (group,) = job.groups
        first = msgspec.structs.replace(group, count=2, meta={"steward_failures_allowed": "1"})
        return await client.wait(await client.run(msgspec.structs.replace(job, groups=[first])))

    result = await backend.with_client(steward, program)
    assert result.run is not None
    assert (result.succeeded, result.run.status) == (True, "succeeded")
    assert {one.allocation.client_status for one in result.allocations} == {"complete", "failed"}


async def test_events_of_a_run_end_with_its_outcome(backend: Backend, steward: Steward) -> None:
    async def program(client: Client):
        run = await client.run(shell("followed", "true"))
        return [event async for event in client.follow(run)]

    events = await backend.with_client(steward, program)
    assert events[0].job is not None
    statuses = [event.allocation.client_status for event in events if event.allocation]
    assert statuses[0] == "pending"
    assert statuses[-1] == "complete"


async def test_events_of_a_service_end_with_its_deployment(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        job = shell("service", "sleep 600", job_type="service")
        run = await client.run(job)
        events = [event async for event in client.follow(run)]
        return events, await client.allocations("service"), await client.stop("service")

    events, allocations, _ = await backend.with_client(steward, program)
    deployments = [event.deployment.status for event in events if event.deployment]
    assert deployments[-1:] in ([], ["successful"])
    assert [alloc.client_status for alloc in allocations] == ["running"]


async def test_dispatch_with_the_same_token_starts_one_child(
    backend: Backend, steward: Steward
) -> None:
    async def program(client: Client):
        await client.run(parameterized("par", "cat local/in; echo $NOMAD_META_who"))
        first, second = [
            await client.dispatch("par", payload=b"p ", meta={"who": "me"}, idempotency_token="t")
            for _ in range(2)
        ]
        assert first.job_id == second.job_id
        return await client.wait(first), await client.jobs(prefix="par/")

    result, children = await backend.with_client(steward, program)
    assert result.tasks["main"].stdout == b"p me\n"
    assert [child.parent_id for child in children] == ["par"]


async def test_listing_is_watched_from_change_to_change(backend: Backend, steward: Steward) -> None:
    async def program(client: Client):
        seen = []
        path = "/v1/job/watched"
        await client.run(shell("watched", "true", job_type="service"))
        async for job in client.watch(path, dict[str, object]):
            seen.append(job["Priority"])
            if len(seen) == 1:
                await client.run(shell("watched", "true", job_type="service", priority=70))
            if job["Priority"] == 70:
                break
        await client.stop("watched")
        return seen

    seen = await backend.with_client(steward, program)
    assert (seen[0], seen[-1]) == (50, 70)
