"""Crash scenes for jobs and nodes: operations that make the daemon reach its crash points.

A scene can be cut off anywhere and start again. Its names are fixed, and leftovers of an earlier,
crashed run do not disturb it. Each response is recorded as a promise (`World.change`).
"""

import base64
import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from storage.records.base import SECOND
from tests import websocket_client
from tests.crash.ledger import job
from tests.crash.world import World

Scene = Callable[[World], Awaitable[None]]

# The background process must also end when the task is stopped.
RUNS_ON = "sleep 700 & echo $NOMAD_ALLOC_ID $$ >> {starts}; exec sleep 600"
ENDS = "echo $NOMAD_ALLOC_ID $$ >> {starts}; exit {code}"
FAST = {"MinHealthyTime": 1, "HealthyDeadline": 60 * SECOND, "ProgressDeadline": 600 * SECOND}
KEPT = 3_000_000  # bytes: slightly more than two log files
HOOK_SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


def long(world: World, job_id: str, **fields: Any) -> dict[str, Any]:
    """Return a long-running job, by default without deployments."""
    command = RUNS_ON.format(starts=world.starts.path)
    return job(job_id, "service", command, **{"Update": {"MaxParallel": 0}, **fields})


def short(world: World, job_id: str, code: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a job whose task exits immediately with the status `code`."""
    return job(job_id, "batch", ENDS.format(starts=world.starts.path, code=code), **fields)


def task_of(definition: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition["TaskGroups"][0]["Tasks"][0]
    return found


async def versions(world: World) -> None:
    """Register, change, tag, revert, scale and stop a job."""
    for number in range(2):
        definition = long(world, "web", Meta={"n": str(number)})
        await world.register(definition, Meta={"n": str(number)}, Stop=False)
    await world.steward.allocations("web", "running", "complete")
    await world.change("POST", "/v1/job/web/versions/good/tag", {"Version": 0})
    await world.change("DELETE", "/v1/job/web/versions/good/tag")
    await world.change(
        "POST", "/v1/job/web/stable", {"JobVersion": 0, "Stable": True, "JobID": "web"}
    )
    await world.change(
        "POST",
        "/v1/job/web/revert",
        {"JobVersion": 0, "JobID": "web"},
        at="/v1/job/web",
        shows={"Meta": {"n": "0"}},
    )
    await world.change(
        "POST", "/v1/job/web/scale", {"Count": 2, "Message": "more", "Target": {"Group": "g"}}
    )
    await world.change("POST", "/v1/job/web/evaluate", {"JobID": "web"})
    found = await world.steward.until(
        "/v1/job/web/allocations",
        lambda shown: (
            sum(
                alloc["ClientStatus"] == "running" and alloc["DesiredStatus"] == "run"
                for alloc in shown
            )
            == 2
        ),
    )
    one = next(alloc["ID"] for alloc in found if alloc["DesiredStatus"] == "run")
    await world.change("POST", f"/v1/allocation/{one}/stop")
    await world.stop("web")


async def children(world: World) -> None:
    """Dispatch children, force launches, and pause and resume a schedule."""
    await world.register(
        short(world, "parent", ParameterizedJob={}, Meta={"steward_children_at_once": "1"})
    )
    for _ in range(3):
        done = await world.change("POST", "/v1/job/parent/dispatch", {})
        if done:
            world.promise(f"/v1/job/{done['DispatchedJobID']}", {"ParentID": "parent"})
    await world.until_dead("parent/")
    clock = {"Enabled": True, "Spec": "0 0 1 1 *", "SpecType": "cron"}
    await world.register(short(world, "clock", Periodic=clock))
    await world.change("POST", "/v1/job/clock/periodic/force")
    await world.change("POST", "/v1/job/clock/periodic/pause")
    await world.change("POST", "/v1/job/clock/periodic/resume")
    await world.until_dead("clock/")


async def deployments(world: World) -> None:
    """Control deployments by hand, and let one proceed automatically."""
    update = {**FAST, "MaxParallel": 1, "Canary": 1}
    steps: dict[str, Any] = {
        "pause": {"Pause": True},
        "unpause": {"Pause": False},
        "promote": {"All": True},
    }
    await world.register(long(world, "shop", Update=FAST))
    await world.steward.until(
        "/v1/job/shop/deployment", lambda item: item and item["Status"] == "successful"
    )
    await world.register(
        long(world, "shop", Update=update, Meta={"color": "blue"}), Meta={"color": "blue"}
    )
    found = await world.steward.until(
        "/v1/job/shop/deployment",
        lambda job: job["Status"] == "running" and job["TaskGroups"]["g"]["HealthyAllocs"] == 1,
    )
    for name, body in steps.items():
        verb = name.removeprefix("un")
        await world.change(
            "POST", f"/v1/deployment/{verb}/{found['ID']}", {"DeploymentID": found["ID"], **body}
        )
    await world.steward.until(
        "/v1/job/shop/deployment", lambda item: item["Status"] == "successful"
    )
    manual = {**FAST, "MaxParallel": 1, "HealthCheck": "manual"}
    await world.register(
        long(world, "shop", Update=manual, Meta={"color": "red"}), Meta={"color": "red"}
    )
    found = await world.steward.until(
        "/v1/job/shop/deployment",
        lambda job: job["Status"] == "running" and job["TaskGroups"]["g"]["PlacedAllocs"] == 1,
    )
    placed = await world.steward.get(f"/v1/deployment/allocations/{found['ID']}")
    await world.change(
        "POST",
        f"/v1/deployment/allocation-health/{found['ID']}",
        {"DeploymentID": found["ID"], "HealthyAllocationIDs": [placed[0]["ID"]]},
    )
    await world.register(
        long(world, "shop", Update=manual, Meta={"color": "green"}), Meta={"color": "green"}
    )
    found = await world.steward.until(
        "/v1/job/shop/deployment",
        lambda item: item["Status"] == "running" and item["ID"] != found["ID"],
    )
    await world.change("POST", f"/v1/deployment/fail/{found['ID']}")
    await world.stop("shop")


async def nodes(world: World) -> None:
    """Make a node ineligible and eligible, and re-evaluate it."""
    await world.register(long(world, "web"))
    await world.steward.allocations("web", "running", "complete")
    (node,) = await world.steward.get("/v1/nodes")
    path = f"/v1/node/{node['ID']}"
    await world.change("POST", f"{path}/evaluate")
    world.forget(path)
    await world.change("POST", f"{path}/drain", {"DrainSpec": {"Deadline": -1}})
    await world.steward.until(path, lambda shown: not shown["Drain"])
    await world.change(
        "POST",
        f"{path}/eligibility",
        {"Eligibility": "eligible"},
        at=path,
        shows={"SchedulingEligibility": "eligible"},
    )
    config = await world.steward.get("/v1/operator/scheduler/configuration")
    await world.change("POST", "/v1/operator/scheduler/configuration", config["SchedulerConfig"])
    await world.stop("web")


async def collection(world: World) -> None:
    """Collect garbage."""
    failing = short(world, "failing", 3)
    task_of(failing)["Config"]["args"][1] = f"echo failed; {task_of(failing)['Config']['args'][1]}"
    await world.register(failing)
    await world.until_dead("failing")
    await world.change("PUT", "/v1/system/reconcile/summaries")
    world.forget("/v1/job/")  # removes all terminal objects
    await world.change("PUT", "/v1/system/gc")


async def files(world: World) -> None:
    """Run a task with a template, artifacts, a payload, in-memory secrets and full logs."""
    port = world.files_port
    definition = long(world, "files")
    task = task_of(definition)
    home = "local" if world.is_root else "alloc"
    task["Templates"] = [
        {
            "EmbeddedTmpl": 'x={{ env "NOMAD_ALLOC_ID" }}',
            "DestPath": f"{home}/x/y.env",
            "Envvars": True,
            "ChangeMode": "noop",
            "Uid": os.geteuid(),
            "Gid": os.getegid(),
        },
    ]
    task["Artifacts"] = [
        {"GetterSource": f"http://127.0.0.1:{port}/tree.tar.gz", "RelativeDest": "local/a"},
        {
            "GetterSource": f"http://127.0.0.1:{port}/plain.txt",
            "RelativeDest": "local/b/plain",
            "GetterMode": "file",
        },
        {"GetterSource": f"{world.shared}/tree", "RelativeDest": "local/c"},
        {"GetterSource": f"{world.shared}/plain.txt", "RelativeDest": "local/d"},
    ]
    task["Identities"] = [{"Name": "own", "File": True, "Audience": ["all"]}]
    task["Identity"] = {"File": True, "Env": True}
    task["Vault"] = {}
    task["LogConfig"] = {"MaxFiles": 2, "MaxFileSizeMB": 1}
    await world.register(definition)
    (found, *_) = await world.steward.allocations("files", "running")
    await world.change(
        "POST", f"/v1/client/allocation/{found['ID']}/signal", {"Signal": "SIGCONT", "Task": "t"}
    )
    path = f"/v1/client/allocation/{found['ID']}/exec"
    given = {"task": "t", "command": json.dumps(["/bin/echo", "x"]), "tty": "true"}
    headers = [("X-Service-Token", world.steward.token)]
    async with websocket_client.talk(
        world.steward.address, path, headers=headers, **given
    ) as socket:
        await socket.all()
    given = {"task": "t", "command": json.dumps(["/bin/sleep", "600"])}
    async with websocket_client.talk(
        world.steward.address, path, headers=headers, **given
    ) as socket:
        await socket.accepted()
    world.starts_again(found["ID"])
    await world.change("POST", f"/v1/client/allocation/{found['ID']}/restart", {"TaskName": "t"})
    await world.steward.until(
        f"/v1/allocation/{found['ID']}", lambda shown: shown["TaskStates"]["t"]["Restarts"] == 1
    )
    await world.stop("files", purge=True)
    await world.change("PUT", "/v1/system/gc")


async def others(world: World) -> None:
    """Run a task as another user, damage its log, and migrate its directory."""
    definition = long(world, "others")
    definition["TaskGroups"][0]["EphemeralDisk"] = {"SizeMB": 10, "Sticky": True, "Migrate": True}
    task = task_of(definition)
    if world.is_root:
        task["User"] = "nobody"
    task["Templates"] = [{"EmbeddedTmpl": "x", "DestPath": "local/x/y", "ChangeMode": "noop"}]
    task["Artifacts"] = [
        {"GetterSource": f"{world.shared}/tree", "RelativeDest": "local/d", "Chown": True}
    ]
    task["Config"]["args"][1] = "exec sleep 600"
    runs = ""
    for number in range(2):
        await world.register({**definition, "Meta": {"n": str(number)}}, Meta={"n": str(number)})
        shown = await world.steward.until(
            "/v1/job/others/allocations", partial(_another_runs, before=runs)
        )
        (runs,) = [alloc["ID"] for alloc in shown if alloc["ClientStatus"] == "running"]
    world.spoil_log(runs)
    world.starts_again(runs)
    await world.change("POST", f"/v1/client/allocation/{runs}/restart", {"TaskName": "t"})
    await world.steward.until(
        f"/v1/allocation/{runs}", lambda shown: shown["TaskStates"]["t"]["Restarts"] == 1
    )
    await world.stop("others", purge=True)


def _another_runs(shown: list[dict[str, Any]], *, before: str) -> bool:
    """Return whether a new allocation runs: all desired allocations run, and the rest are complete.

    `before` is the ID of the earlier allocation.
    """
    states = [(item["DesiredStatus"] == "run", item["ClientStatus"]) for item in shown]
    is_new = any(item["ID"] != before and item["ClientStatus"] == "running" for item in shown)
    return is_new and all(
        status == "running" if is_wanted else status == "complete" for is_wanted, status in states
    )


async def logs(world: World) -> None:
    """Let a log grow beyond its limits."""
    fill = "head -c 6000000 /dev/zero | tr '\\0' x"
    wait = "touch $NOMAD_ALLOC_DIR/full; until [ -e $NOMAD_ALLOC_DIR/more ]; do sleep 0.1; done"
    definition = job(
        "logs", "service", f"{fill}; {wait}; {fill}; {RUNS_ON.format(starts=world.starts.path)}"
    )
    task_of(definition)["LogConfig"] = {"MaxFiles": 2, "MaxFileSizeMB": 1}
    await world.register(definition)
    (found, *_) = await world.steward.allocations("logs", "running")
    await world.until_there(found["ID"], "full")
    await world.until_trimmed(found["ID"], KEPT)
    world.may_go_on(found["ID"])
    await world.until_started(found["ID"])
    await world.until_trimmed(found["ID"], KEPT)
    await world.stop("logs", purge=True)


async def isolated(world: World) -> None:
    """Run tasks with `exec` and `mock_driver`."""
    for driver, config in (
        ("exec", {"command": "/bin/sleep", "args": ["600"]}),
        ("mock_driver", {"run_for": "600s", "stdout_string": "hello"}),
    ):
        definition = long(world, driver)
        task_of(definition).update(Driver=driver, Config=config)
        if driver == "exec":
            task_of(definition)["Resources"] = {"Cores": 1, "MemoryMB": 10}
        await world.register(definition)
        await world.steward.until(
            f"/v1/job/{driver}/allocations",
            lambda shown: any(alloc["ClientStatus"] != "pending" for alloc in shown),
        )
        await world.stop(driver, purge=True)


async def services(world: World) -> None:
    """Register a service with checks, and delete it by hand."""
    definition = long(world, "served")
    check = {"Interval": SECOND, "Timeout": SECOND, "PortLabel": str(world.files_port)}
    definition["TaskGroups"][0]["Services"] = [
        {
            "Name": "served",
            "Provider": "nomad",
            "PortLabel": str(world.files_port),
            "Address": "127.0.0.1",
            "Checks": [
                {"Type": "http", "Name": "h", "Path": "/plain.txt", **check},
                {"Type": "tcp", "Name": "t", **check},
                {"Type": "grpc", "Name": "g", **check},
            ],
        }
    ]
    await world.register(definition)
    (found, *_) = await world.steward.allocations("served", "running")
    (one, *_) = await world.steward.until("/v1/service/served", bool)
    await world.until_checked(found["ID"], 2)
    await world.change("DELETE", f"/v1/service/served/{one['ID']}")
    await world.stop("served", purge=True)


async def notifications(world: World) -> None:
    """Send failure notifications through both channels."""
    await world.change("POST", "/v1/var/steward/notify", {"Items": {"secret": HOOK_SECRET}})
    for name, meta in (
        ("hooked", {"steward_notify_webhook": world.receiver.url}),
        ("called", {"steward_notify_command": "tell"}),
    ):
        await world.register(short(world, name, 3, Meta=meta))
        await world.steward.until(
            f"/v1/job/{name}/notifications",
            lambda shown: shown and all(item["Status"] == "sent" for item in shown),
        )


def step(world: World, name: str, needs: str = "", code: int = 0, **keys: str) -> dict[str, Any]:
    """Return a group of a workflow. Its task exits immediately with the status `code`."""
    (group,) = short(world, "step", code)["TaskGroups"]
    named = {f"steward_{key}": text for key, text in keys.items()}
    if needs:
        named["steward_needs"] = needs
    return {**group, "Name": name, "Meta": named}


async def workflows(world: World) -> None:
    """Run a chain, a diamond, and a failure with a handler; replace a run, and stop one."""
    graphs = {
        "chain": [step(world, "a"), step(world, "b", "a"), step(world, "c", "b")],
        "diamond": [
            *(step(world, "a"), step(world, "b", "a"), step(world, "c", "a")),
            step(world, "d", "b, c"),
        ],
        "handled": [
            *(step(world, "a", code=3), step(world, "b", "a")),
            step(world, "page", "*", when="failure"),
        ],
    }
    for name, groups in graphs.items():
        await world.register({"ID": name, "Type": "batch", "TaskGroups": groups})
    for name in graphs:
        await world.until_dead(name)
    waits = short(world, "replaced")["TaskGroups"][0]
    waits["Tasks"][0]["Config"]["args"][1] = RUNS_ON.format(starts=world.starts.path)
    for number in range(2):
        groups = [{**waits, "Name": "a"}, step(world, "b", "a")]
        await world.register(
            {"ID": "replaced", "Type": "batch", "TaskGroups": groups, "Meta": {"n": str(number)}}
        )
    await world.stop("replaced")


async def fanned(world: World) -> None:
    """Run a step for each item of an output, two items at a time, and then a last step."""
    plan = step(world, "plan", outputs="items")
    work = step(world, "work", "plan", for_each="${output.plan.items}", parallel="2")
    for group, output in ((plan, 'items=["a", "b", "c"]'), (work, "done=${each.value}")):
        command = group["Tasks"][0]["Config"]["args"]
        command[1] = f"echo '{output}' > $STEWARD_OUTPUT; {command[1]}"
    groups = [plan, work, step(world, "join", "work")]
    await world.register({"ID": "fanned", "Type": "batch", "TaskGroups": groups})
    await world.until_dead("fanned")
    rows = await world.steward.get("/v1/job/fanned/run/outputs", step="work")
    assert [row["Outputs"] for row in rows] == [{"done": item} for item in "abc"], rows
    run = await world.steward.get("/v1/job/fanned/run")
    assert [named["Good"] for named in run["Steps"]] == [1, 3, 1], run


async def successions(world: World) -> None:
    """Let two runs share a queue, and start one child after both."""
    keys = {"after": "one, two", "after_join": "all", "after_when": "any"}
    meta = {f"steward_{key}": text for key, text in keys.items()}
    await world.register(short(world, "after", ParameterizedJob={}, Meta=meta))
    for name in ("one", "two"):
        await world.register(short(world, name, Meta={"steward_run_concurrency": "shared"}))
    for name in ("one", "two"):
        await world.until_dead(name)
    lines = await world.steward.until(
        "/v1/job/after/triggers", lambda found: len(found) == 2 and found[0]["State"] == "fired"
    )
    await world.until_dead(lines[0]["ChildID"])
    children = await world.steward.get("/v1/jobs", prefix="after/")
    assert [child["ID"] for child in children] == [lines[0]["ChildID"]], lines
    assert await in_queues(world, "shared") == []


async def shared_slots(world: World) -> None:
    """Let the elements of two workflows share queues of steps, one with a failing step."""
    await world.change("POST", "/v1/concurrency/pool", {"Slots": 2})
    for name, queues in (("many", "pool, disk"), ("few", "pool")):
        groups = [
            {**step(world, "a", concurrency=queues), "Count": 2},
            step(world, "b", "a", code=3, concurrency=queues),
        ]
        await world.register({"ID": name, "Type": "batch", "TaskGroups": groups})
    for name in ("many", "few"):
        await world.until_dead(name)
    assert await in_queues(world, "pool", "disk") == [("pool", 0, 0)]


async def in_queues(world: World, *names: str) -> list[tuple[str, int, int]]:
    """Return the name, the number of used slots and the number of waiting runs of each queue.

    Queues that no longer exist are omitted.

    Queues of killed scenes may remain.
    """
    queues = await world.steward.get("/v1/concurrency")
    return [(one["Name"], one["InUse"], one["Waiting"]) for one in queues if one["Name"] in names]


async def frozen(world: World) -> None:
    """Hold runs by two freezes: one that a user ends, and one that expires."""
    held = await freeze(world, Strength="steps", Jobs="held-*")
    await freeze(world, Jobs="later", Until="+2s")
    await world.register(short(world, "held-plain"))
    await world.register(short(world, "later"))
    groups = [step(world, "a"), step(world, "b", "a")]
    meta = {"steward_run_concurrency": "shared"}
    for name in ("held-flow", "flow"):
        await world.register({"ID": name, "Type": "batch", "TaskGroups": groups, "Meta": meta})
    await world.until_dead("flow")  # the held run has no slot
    await world.until_dead("later")
    await world.change("DELETE", f"/v1/freeze/{held}")
    await world.until_dead("held-")
    await world.steward.until("/v1/freezes", lambda found: all(one["Ended"] for one in found))


async def freeze(world: World, **fields: str) -> str:
    """Create a freeze, and return its ID."""
    answer = await world.change("POST", "/v1/freeze", {"Reason": "release", **fields})
    return str(answer["ID"])


async def upkeep(world: World) -> None:
    """Save a snapshot over HTTP."""
    answer = await world.steward.request("GET", "/v1/operator/snapshot")
    assert answer.is_success, answer.text


SCENES: tuple[Scene, ...] = (
    versions,
    children,
    deployments,
    nodes,
    collection,
    files,
    others,
    logs,
    isolated,
    services,
    notifications,
    workflows,
    fanned,
    successions,
    shared_slots,
    frozen,
    upkeep,
)
