"""Crash scenes for files, volumes, calendars and settings.

Their operations make the daemon reach its crash points.
"""

import hashlib
import json
from typing import Any

import httpx

from tests.crash.job_scenes import Scene, short, step, task_of
from tests.crash.world import World

HOLIDAYS = b"""BEGIN:VCALENDAR\r
BEGIN:VEVENT\r
UID:1\r
SUMMARY:Christmas\r
DTSTART;VALUE=DATE:20001225\r
RRULE:FREQ=YEARLY\r
END:VEVENT\r
END:VCALENDAR\r
"""


async def uploads(world: World) -> None:
    """Upload a file in two pieces, and give it to a child, which compares the content."""
    content = world.fresh("input").encode() * 1000
    digest = hashlib.sha256(content).hexdigest()
    at, half = f"/v1/payload/{digest}", len(content) // 2
    for piece, offset in ((content[:half], 0), (content[half:], half)):
        received = offset + len(piece)
        await world.change(
            *("PUT", at),
            raw=piece,
            at=at,
            shows={"Received": received, "IsComplete": received == len(content)},
            size=len(content),
            offset=offset,
        )
    await _upload_wrong(world)
    parent = short(world, "given", ParameterizedJob={})
    task = task_of(parent)
    task["Artifacts"] = [{"GetterSource": "payload://in.bin", "RelativeDest": "local/"}]
    compare = f"test $(sha256sum < local/in.bin | cut -c1-64) = {digest} || exit 9"
    task["Config"]["args"][1] = f"{compare}; {task['Config']['args'][1]}"
    await world.register(parent)
    done = await world.change("POST", "/v1/job/given/dispatch", {"Files": {"in.bin": digest}})
    world.promise(f"/v1/job/{done['DispatchedJobID']}", {"ParentID": "given"})
    await _until_ended(world, done["DispatchedJobID"], "complete")


async def _upload_wrong(world: World) -> None:
    """Upload content that does not match its digest.

    After a kill, the content may already be stored but not yet verified.
    """
    wrong = await _put_wrong(world, b"x", offset=0)
    if wrong.status_code == 409:
        wrong = await _put_wrong(world, b"", offset=1)
    assert wrong.status_code == 400, wrong.text


async def _put_wrong(world: World, piece: bytes, *, offset: int) -> httpx.Response:
    return await world.steward._http.request(
        "PUT",
        f"{world.steward.address}/v1/payload/{'0' * 64}",
        params={"size": "1", "offset": str(offset)},
        content=piece,
        headers={"X-Service-Token": world.steward.token},
    )


async def kept(world: World) -> None:
    """Keep a file of a step, and give it to the next step, which compares the content."""
    make, use = step(world, "make"), step(world, "use", "make")
    maker, user = make["Tasks"][0], use["Tasks"][0]
    maker["Meta"] = {"steward_keep": "out/*"}
    maker["Config"]["args"][1] = f"mkdir out; echo a > out/a; {maker['Config']['args'][1]}"
    user["Artifacts"] = [{"GetterSource": "kept://make/out/a", "RelativeDest": "local/"}]
    user["Config"]["args"][1] = f"test $(cat local/a) = a || exit 9; {user['Config']['args'][1]}"
    await world.register({"ID": "keeps", "Type": "batch", "TaskGroups": [make, use]})
    await world.until_dead("keeps")
    shown = await world.steward.get("/v1/job/keeps/run")
    assert [one["State"] for one in shown["Steps"]] == ["succeeded"] * 2, shown
    (first,) = (
        alloc["ID"]
        for alloc in await world.steward.get("/v1/job/keeps/allocations")
        if alloc["TaskGroup"] == "make"
    )
    files = await world.steward.get(f"/v1/allocation/{first}/kept")
    assert [(one["Path"], one["Size"]) for one in files] == [("out/a", 2)], files


async def bulk(world: World) -> None:
    """Dispatch several children with one request, and again with the same idempotency tokens."""
    await world.register(short(world, "many", ParameterizedJob={}))
    stem = world.fresh("line")
    lines = [json.dumps({"IdempotencyToken": f"{stem}-{number}"}) for number in range(4)]
    children: list[set[str]] = []
    for _ in range(2):
        answer = await world.send(
            "POST", "/v1/job/many/dispatch/bulk", raw="\n".join(lines).encode()
        )
        children.append({json.loads(line)["DispatchedJobID"] for line in answer.text.splitlines()})
        for child in children[-1]:
            world.promise(f"/v1/job/{child}", {"ParentID": "many"})
    assert children[0] == children[1], children
    await world.until_dead("many/")


async def steered(world: World) -> None:
    """Approve, reject, skip, accept, run again and cancel the steps of runs; run one step."""
    groups = [step(world, "a"), step(world, "b", "a", gate="Release?")]
    for verb in ("approve", "reject", "skip", "cancel"):
        gated = {"ID": "gated", "Type": "batch", "TaskGroups": groups, "Meta": {"n": verb}}
        await world.register(gated)
        number = await _until_step(world, "gated", "b", "held")
        body = {"Number": number} if verb == "cancel" else {"Number": number, "Steps": ["b"]}
        await world.change("POST", f"/v1/job/gated/run/{verb}", body)
        await world.until_dead("gated")
    failing = [step(world, "a", code=3), step(world, "b", "a")]
    await world.register({"ID": "mended", "Type": "batch", "TaskGroups": failing})
    await world.until_dead("mended")
    await world.change("POST", "/v1/job/mended/run/rerun", {"Failed": True})
    await world.until_dead("mended")
    await world.change("POST", "/v1/job/mended/run/accept", {"Steps": ["a"]})
    await world.until_dead("mended")
    await world.change("POST", "/v1/job/mended/run/step", {"Steps": ["b"]})
    await world.until_dead("mended")


async def dates(world: World) -> None:
    """Create a calendar, import holidays, and delete it; also change the limit of a queue."""
    at = "/v1/calendar/work"
    await world.change(
        "POST", at, {"TimeZone": "Europe/Paris"}, at=at, shows={"TimeZone": "Europe/Paris"}
    )
    await world.change("POST", f"{at}/import", raw=HOLIDAYS)
    await world.change("DELETE", at, at=at, shows=None)
    at = "/v1/concurrency/disk"
    await world.change("POST", at, {"Slots": 3}, at=at, shows={"Slots": 3})
    world.forget(at)
    await world.change("DELETE", at)


async def volumes(world: World) -> None:
    """Create, register and delete host volumes."""
    (node,) = await world.steward.get("/v1/nodes")
    made = await world.change(
        "POST", "/v1/volume/host/create", {"Volume": {"Name": world.fresh("made")}}
    )
    known = {"Name": world.fresh("known"), "NodeID": node["ID"], "HostPath": world.shared}
    registered = await world.change("POST", "/v1/volume/host/register", {"Volume": known})
    for volume_id in (made["Volume"]["ID"], registered["Volume"]["ID"]):
        at = f"/v1/volume/host/{volume_id}"
        world.promise(at, {"ID": volume_id, "State": "ready"})
        await world.change("DELETE", at, at=at, shows=None)


async def settings(world: World) -> None:
    """Change node pools, metadata and identity of the node, and scheduler workers; purge the node."""
    at = "/v1/node/pool/spare"
    await world.change("POST", "/v1/node/pools", {"Name": "spare"}, at=at, shows={"Name": "spare"})
    await world.change("DELETE", at, at=at, shows=None)
    (node,) = await world.steward.get("/v1/nodes")
    path = f"/v1/node/{node['ID']}"
    await world.change("POST", "/v1/client/metadata", {"Meta": {"rack": world.fresh("r")}})
    await world.change("POST", "/v1/client/identity/renew", {"NodeID": node["ID"]})
    workers = await world.steward.get("/v1/agent/schedulers/config")
    await world.change("PUT", "/v1/agent/schedulers/config", workers)
    await world.steward.stop()
    if not await world.steward.start_or_die():
        return
    await world.register(short(world, "evaluated"))
    await world.until_dead("evaluated")
    ended = await world.steward.get("/v1/evaluations", filter='JobID == "evaluated"')
    world.forget("/v1/evaluation")
    await world.pause_evaluations(is_paused=True)
    await world.change("DELETE", "/v1/evaluations", {"EvalIDs": [one["ID"] for one in ended]})
    await world.pause_evaluations(is_paused=False)
    await world.change("POST", f"{path}/purge")


async def _until_ended(world: World, job_id: str, status: str) -> None:
    """Wait until the only allocation of a job has ended, and check its status."""
    (alloc,) = await world.steward.until(
        f"/v1/job/{job_id.replace('/', '%2F')}/allocations",
        lambda shown: (
            [one["ClientStatus"] in ("complete", "failed", "lost") for one in shown] == [True]
        ),
    )
    assert alloc["ClientStatus"] == status, alloc


async def _until_step(world: World, job_id: str, name: str, state: str) -> int:
    """Wait until a step of the newest run has a state; return the number of the run."""

    def is_there(shown: dict[str, Any]) -> bool:
        return (name, state) in [(one["Name"], one["State"]) for one in shown["Steps"]]

    def has_begun(runs: list[dict[str, Any]]) -> bool:
        return any(one["JobID"] == job_id for one in runs)

    await world.steward.until("/v1/runs", has_begun)
    shown = await world.steward.until(f"/v1/job/{job_id}/run", is_there)
    return int(shown["Number"])


SCENES: tuple[Scene, ...] = (uploads, kept, bulk, steered, dates, volumes, settings)
