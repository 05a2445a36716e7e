"""Call sequences of Nomad's and Vault's tools in their order."""

import base64
from typing import Any

from tests.service.daemon import Steward
from tests.service.streaming import open_stream
from tests.service.test_sessions import command

SOURCE = """
job "web" {
  datacenters = ["dc1"]
  group "web" {
    count = 1
    scaling {
      enabled = true
      min     = 1
      max     = 5
      policy { cooldown = "1m" }
    }
    update {
      min_healthy_time = "10ms"
      health_check     = "task_states"
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo up; exec sleep 600"]
      }
      kill_timeout = "1s"
      resources {
        cpu    = 20
        memory = 20
      }
    }
  }
}
"""
WHERE = {"namespace": "default", "region": "global"}  # the tools always send these


async def parsed(steward: Steward, source: str = SOURCE) -> Any:
    return await steward.post("/v1/jobs/parse", {"JobHCL": source, "Canonicalize": True})


async def followed(steward: Steward, eval_id: str) -> Any:
    """Follow an evaluation as `job run` does: with its allocations, until its deployment ends."""
    evaluation = await steward.until(
        f"/v1/evaluation/{eval_id}", lambda shown: shown["Status"] == "complete", **WHERE
    )
    await steward.get(f"/v1/evaluation/{eval_id}/allocations", **WHERE)
    return await steward.until(
        f"/v1/deployment/{evaluation['DeploymentID']}",
        lambda shown: shown["Status"] == "successful",
        **WHERE,
    )


async def test_command_line_requests_of_run_and_status_are_answered(steward: Steward) -> None:
    job = await parsed(steward)
    submission = {"Source": SOURCE, "Format": "hcl2", "VariableFlags": {}, "Variables": ""}
    done = await steward.post("/v1/jobs", {"Job": job, "Submission": submission}, **WHERE)
    deployment = await followed(steward, done["EvalID"])
    assert deployment["TaskGroups"]["web"]["HealthyAllocs"] == 1

    # job status: jobs with a prefix, and then all data of the only match
    (line,) = await steward.get("/v1/jobs", prefix="we", **WHERE)
    assert (line["ID"], line["Namespace"]) == ("web", "default")
    shown = {
        part: await steward.get(f"/v1/job/web{part}", **WHERE)
        for part in ("", "/summary", "/allocations", "/evaluations", "/deployment", "/scale")
    }
    assert shown[""]["Status"] == "running"
    assert shown["/summary"]["Summary"]["web"]["Running"] == 1
    assert shown["/deployment"]["ID"] == deployment["ID"]
    assert done["EvalID"] in {item["ID"] for item in shown["/evaluations"]}
    (placed,) = shown["/allocations"]

    # alloc logs -f: by an ID prefix, and then frames until the client disconnects
    (found,) = await steward.get("/v1/allocations", prefix=placed["ID"][:8], **WHERE)
    whole = await steward.get(f"/v1/allocation/{found['ID']}", **WHERE)
    assert list(whole["TaskStates"]) == ["main"]
    query = {"task": "main", "type": "stdout", "origin": "start", "offset": 0, "follow": True}
    path = f"/v1/client/fs/logs/{found['ID']}"
    async with open_stream(steward, path, **query, **WHERE) as stream:
        text = b""
        while not text.endswith(b"}"):
            text += await stream.piece()
    assert base64.b64encode(b"up\n") in text

    # alloc exec: a search for the allocation, and then a session
    asked = {"Prefix": placed["ID"][:6], "Context": "allocs"}
    searched = await steward.post("/v1/search", asked, **WHERE)
    assert searched["Matches"]["allocs"] == [placed["ID"]]
    frames = await command(steward, placed["ID"], "/bin/echo", "hello", **WHERE)
    said = [
        base64.b64decode(frame["stdout"]["data"])
        for frame in frames
        if "data" in frame.get("stdout", {})
    ]
    assert b"".join(said) == b"hello\n"
    assert frames[-1]["exited"]

    # job stop, and its evaluation
    done = await steward.delete("/v1/job/web", purge=False, **WHERE)
    await steward.until(
        f"/v1/evaluation/{done['EvalID']}", lambda shown: shown["Status"] == "complete", **WHERE
    )


async def test_requests_of_a_terraform_provider_are_answered(steward: Steward) -> None:
    job = await parsed(steward)
    planned = await steward.post("/v1/job/web/plan", {"Job": job, "Diff": True}, **WHERE)
    assert (planned["Diff"]["Type"], planned["JobModifyIndex"]) == ("Added", 0)
    new = {"EnforceIndex": True, "JobModifyIndex": planned["JobModifyIndex"]}
    done = await steward.post("/v1/jobs", {"Job": job, **new}, **WHERE)
    await followed(steward, done["EvalID"])

    again = await steward.post("/v1/job/web/plan", {"Job": job, "Diff": True}, **WHERE)
    assert again["Diff"]["Type"] == "None"
    assert again["JobModifyIndex"] == (await steward.get("/v1/job/web", **WHERE))["JobModifyIndex"]

    late = await steward.request("POST", "/v1/jobs", {"Job": job, **new}, **WHERE)
    assert late.status_code == 500
    assert "Enforcing job modify index 0" in late.text

    changed = await parsed(steward, SOURCE.replace("echo up", "echo anew"))
    planned = await steward.post("/v1/job/web/plan", {"Job": changed, "Diff": True}, **WHERE)
    assert planned["Diff"]["Type"] == "Edited"
    index = {"EnforceIndex": True, "JobModifyIndex": planned["JobModifyIndex"]}
    done = await steward.post("/v1/job/web", {"Job": changed, **index}, **WHERE)
    await followed(steward, done["EvalID"])
    assert (await steward.get("/v1/job/web", **WHERE))["Version"] == 1

    await steward.delete("/v1/job/web", purge=True, **WHERE)
    gone = await steward.request("GET", "/v1/job/web", **WHERE)
    assert (gone.status_code, gone.text) == (404, "job not found")


async def test_requests_of_an_autoscaler_are_answered(steward: Steward) -> None:
    done = await steward.post("/v1/jobs", {"Job": await parsed(steward)}, **WHERE)
    await followed(steward, done["EvalID"])
    (listed,) = await steward.until("/v1/scaling/policies", bool, **WHERE)
    assert listed["Target"] == {"Namespace": "default", "Job": "web", "Group": "web"}
    policy = await steward.get(f"/v1/scaling/policy/{listed['ID']}", **WHERE)
    assert (policy["Min"], policy["Max"], policy["Policy"]) == (1, 5, {"cooldown": "1m"})

    status = await steward.get("/v1/job/web/scale", **WHERE)
    assert status["TaskGroups"]["web"]["Desired"] == 1
    order = {
        "Count": 3,
        "Target": {"Job": "web", "Group": "web"},
        "Message": "scaling up because metric is 3",
        "Error": False,
        "Meta": {"nomad_autoscaler.reason_history": ["more"]},
    }
    done = await steward.post("/v1/job/web/scale", order, **WHERE)
    await followed(steward, done["EvalID"])
    status = await steward.until(
        "/v1/job/web/scale", lambda shown: shown["TaskGroups"]["web"]["Running"] == 3, **WHERE
    )
    (event, *_) = status["TaskGroups"]["web"]["Events"]
    assert (event["Count"], event["PreviousCount"], event["Message"]) == (3, 1, order["Message"])

    refused = {**order, "Count": 9, "Error": False}
    answer = await steward.request("POST", "/v1/job/web/scale", refused, **WHERE)
    assert answer.status_code == 400
    assert "greater than scaling policy maximum" in answer.text
    note = {"Target": {"Group": "web"}, "Message": "failed to ask", "Error": True, "Meta": {}}
    await steward.post("/v1/job/web/scale", note, **WHERE)
    status = await steward.get("/v1/job/web/scale", **WHERE)
    assert status["TaskGroups"]["web"]["Events"][0]["Error"] is True
