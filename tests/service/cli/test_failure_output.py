"""Results of a failed deployment and of a failing nightly job, for scripts and operators."""

import json

from storage.records.base import SECOND
from tests.service.cli.test_commands import FOREVER, job_file
from tests.service.daemon import Steward

UPDATE = {
    "MaxParallel": 1,
    "HealthCheck": "task_states",
    "MinHealthyTime": SECOND // 10,
    "HealthyDeadline": 5 * SECOND,
    "ProgressDeadline": 10 * SECOND,
    "AutoRevert": True,
}


async def test_failed_deployment_fails_a_script(steward: Steward) -> None:
    good = await steward.cli("run", "-", stdin=job_file("web", FOREVER, Update=UPDATE))
    assert (good.returncode, good.stderr) == (0, b"")
    assert "version 0 is deployed" in good.stdout.decode()
    bad = await steward.cli("run", "-", stdin=job_file("web", "exit 3", Update=UPDATE))
    assert bad.returncode == 1
    assert "version 1 is not deployed" in bad.stdout.decode()
    assert 'task "main" exited with code 3' in bad.stdout.decode()
    assert "version 2 is desired now" in bad.stdout.decode()


async def test_failing_nightly_job_is_shown_as_failing_on_every_surface(steward: Steward) -> None:
    text = json.loads(job_file("nightly", "exit 3", "batch"))
    text["Job"]["Periodic"] = {"Spec": "@yearly", "SpecType": "cron"}
    await steward.cli("run", "-", stdin=json.dumps(text))
    await steward.cli("job", "periodic", "force", "nightly")
    await steward.until("/v1/job/nightly/state", lambda shown: shown["State"] == "failing")
    listed = (await steward.cli("status")).stdout.decode()
    shown = (await steward.cli("job", "status", "nightly")).stdout.decode()
    statuses = await steward.get("/v1/jobs/statuses", states="true")
    assert "failing" in next(line for line in listed.splitlines() if line.startswith("nightly"))
    assert "Status        = failing" in shown.splitlines()
    assert [status["StewardState"]["State"] for status in statuses] == ["failing"]
    (run,) = await steward.get("/v1/job/nightly/runs")
    assert (run["Result"], run["ExitCode"]) == ("failed", 3)


async def test_root_cause_is_reported_on_every_surface(steward: Steward) -> None:
    text = json.loads(job_file("nightly", "echo no disk left >&2; exit 3", "batch"))
    text["Job"]["Periodic"] = {"Spec": "@yearly", "SpecType": "cron"}
    await steward.cli("run", "-", stdin=json.dumps(text))
    await steward.cli("job", "periodic", "force", "nightly")
    await steward.until("/v1/job/nightly/state", lambda shown: shown["State"] == "failing")
    (run,) = await steward.get("/v1/job/nightly/runs")
    alloc_id = run["Error"]["AllocationID"]
    for words in (
        ("job", "status", "nightly"),
        ("job", "explain", "nightly"),
        ("alloc", "status", alloc_id),
    ):
        shown = (await steward.cli(*words)).stdout.decode()
        assert 'task "main" exited with code 3' in shown, words
        assert "    no disk left" in shown, words
    explained = json.loads((await steward.cli("job", "explain", "-json", "nightly")).stdout)
    assert explained["State"]["State"] == "failing"
    assert explained["State"]["Error"]["ExitCode"] == 3
    assert explained["State"]["Error"]["Stderr"] == "no disk left\n"


async def test_the_logs_of_a_nightly_job_are_those_of_its_newest_run(steward: Steward) -> None:
    # The name of a run contains its start time in seconds, so the two runs must not start in one
    # second.
    text = json.loads(job_file("nightly", "sleep 1; echo of $NOMAD_JOB_ID", "batch"))
    text["Job"]["Periodic"] = {"Spec": "@yearly", "SpecType": "cron"}
    await steward.cli("run", "-", stdin=json.dumps(text))
    for number in (1, 2):
        await steward.cli("job", "periodic", "force", "nightly")
        await steward.until(
            "/v1/job/nightly/runs",
            lambda runs, number=number: [run["Result"] for run in runs] == ["complete"] * number,
        )
    newest, before = await steward.get("/v1/job/nightly/runs")
    shown = await steward.cli("logs", "nightly")
    assert f"of {newest['ID']}" in shown.stdout.decode()
    assert shown.stderr.decode() == f"run {newest['ID']}\n"
    assert (
        f"of {before['ID']}" in (await steward.cli("logs", "--run", "1", "nightly")).stdout.decode()
    )
    name = before["ID"].removeprefix("nightly/")
    assert (
        f"of {before['ID']}"
        in (await steward.cli("logs", "--run", name, "nightly")).stdout.decode()
    )
    gone = await steward.cli("logs", "--run", "7", "nightly")
    assert (gone.returncode, gone.stderr) == (
        1,
        b'steward: job "nightly" has only 2 runs to show\n',
    )


async def test_runs_are_folded_into_their_job_unless_requested(steward: Steward) -> None:
    text = json.loads(job_file("convert", "exit 3", "batch"))
    text["Job"]["ParameterizedJob"] = {}
    await steward.cli("run", "-", stdin=json.dumps(text))
    await steward.cli("job", "dispatch", "convert")
    await steward.until("/v1/job/convert/state", lambda shown: shown["State"] == "failing")

    async def listed(*words: str) -> dict[str, str]:
        lines = (await steward.cli("status", *words)).stdout.decode().splitlines()[1:]
        return {line.split()[0]: line.split()[2] for line in lines}

    (run,) = await steward.get("/v1/job/convert/runs")
    assert await listed() == {"convert": "failing"}
    assert await listed("--children") == {"convert": "failing", run["ID"]: "failed"}


async def test_node_status_shows_allocated_resources_on_request(steward: Steward) -> None:
    await steward.cli("run", "-", stdin=job_file("web", FOREVER))
    (plain,) = await steward.get("/v1/nodes")
    assert "Held" not in plain
    (node,) = await steward.get("/v1/nodes", held="true")
    (alloc,) = await steward.allocations("web", "running")
    held = (await steward.get(f"/v1/allocation/{alloc['ID']}"))["AllocatedResources"]["Tasks"]
    assert node["Held"]["CPU"] == sum(task["Cpu"]["CpuShares"] for task in held.values())
    assert node["Held"]["MemoryMB"] == sum(task["Memory"]["MemoryMB"] for task in held.values())
    assert node["Held"]["CPUTotal"] > node["Held"]["CPU"]


async def test_failed_deployment_without_a_rollback_names_the_running_versions(
    steward: Steward,
) -> None:
    # On a busy host, the failing task must not count as healthy before it fails.
    update = {**UPDATE, "AutoRevert": False, "MinHealthyTime": 2 * SECOND}
    await steward.cli("run", "-", stdin=job_file("web", FOREVER, Update=update, Count=2))
    bad = await steward.cli("run", "-", stdin=job_file("web", "exit 3", Update=update, Count=2))
    assert bad.returncode == 1
    assert "version 1 is not deployed" in bad.stdout.decode()
    assert "running now: 1 allocation of version 0" in bad.stdout.decode()


async def test_failed_deployment_names_the_error_of_the_check(steward: Steward) -> None:
    check = {"Type": "tcp", "Name": "alive", "Interval": SECOND, "Timeout": SECOND}
    service = {"Name": "web", "Provider": "nomad", "PortLabel": "http", "Checks": [check]}
    bad = await steward.cli(
        "run",
        "-",
        stdin=job_file(
            "web",
            FOREVER,
            Update={
                **UPDATE,
                "HealthCheck": "checks",
                "HealthyDeadline": SECOND,
                "ProgressDeadline": 2 * SECOND,
            },
            Networks=[{"DynamicPorts": [{"Label": "http"}]}],
            Services=[service],
        ),
    )
    (alloc,) = await steward.allocations("web", "running")
    assert bad.returncode == 1
    assert (
        f'allocation {alloc["ID"][:8]} is unhealthy: task "main": Services not healthy by '
        'deadline: check "alive" of service "web" fails: Connection refused'
    ) in bad.stdout.decode()


async def test_commands_follow_a_deployment_to_its_end(steward: Steward) -> None:
    await steward.cli("run", "-", stdin=job_file("web", FOREVER, Update=UPDATE))
    scaled = await steward.cli("job", "scale", "web", "2")
    stopped = await steward.cli("stop", "web")
    started = await steward.cli("start", "web")
    canary = {**UPDATE, "Canary": 1}
    changed = job_file("web", f"true; {FOREVER}", Update=canary, Count=2)
    await steward.cli("run", "-detach", "-", stdin=changed)
    await steward.until(
        "/v1/job/web/deployment", lambda job: job["TaskGroups"]["web"]["HealthyAllocs"] == 1
    )
    promoted = await steward.cli("job", "promote", "web")
    reverted = await steward.cli("job", "revert", "web", "0")
    done = [scaled, stopped, started, promoted, reverted]
    assert [item.returncode for item in done] == [0] * 5, [item.stdout for item in done]
    assert "version 1 is deployed" in scaled.stdout.decode()
    assert "is successful" in promoted.stdout.decode()
    huge = json.loads(job_file("web", FOREVER, Update=UPDATE))
    huge["Job"]["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] = 10**7
    refused = await steward.cli("run", "-", stdin=json.dumps(huge))
    assert refused.returncode == 2
    explained = (await steward.cli("job", "explain", "web")).stdout.decode()
    assert explained.count("allocation not placed") == 1, explained


async def test_missing_program_is_named_without_transport_details(
    steward: Steward,
) -> None:
    text = json.loads(job_file("absent", "", "batch"))
    text["Job"]["TaskGroups"][0]["Tasks"][0]["Config"] = {"command": "/usr/bin/nonesuch"}
    run = await steward.cli("run", "-", stdin=json.dumps(text))
    assert run.returncode == 1
    (one,) = await steward.get("/v1/job/absent/allocations")
    shown = [
        run,
        await steward.cli("job", "status", "absent"),
        await steward.cli("job", "explain", "absent"),
        await steward.cli("alloc", "status", one["ID"]),
    ]
    texts = [item.stdout.decode() for item in shown]
    assert ['binary "/usr/bin/nonesuch" could not be found' in text for text in texts] == [True] * 4
    assert [text for text in texts if "rpc error" in text] == []
    page = await steward.request("GET", f"/ui/allocation/{one['ID']}")
    assert "could not be found" in page.text
    assert "rpc error" not in page.text


async def test_logs_of_a_run_with_only_error_output_are_found(steward: Steward) -> None:
    await steward.cli("run", "-", stdin=job_file("err", "echo trouble >&2", "batch"))
    (one,) = await steward.get("/v1/job/err/allocations")
    merged = await steward.cli("logs", "err")
    assert merged.stdout.decode().endswith("main | trouble\n")
    empty = await steward.cli("alloc", "logs", one["ID"])
    assert (empty.stdout, b"see the standard error with --stderr" in empty.stderr) == (b"", True)
    asked = await steward.cli("alloc", "logs", "--stdout", one["ID"])
    assert (asked.stdout, asked.stderr) == (b"", b"")
