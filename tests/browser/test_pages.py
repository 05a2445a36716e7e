"""Every page on real data: no script of ours fails, and nothing is asked for that is not there.

With PICTURES=docs/images the pictures of the documentation are made.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Tab
from tests.service.daemon import Steward, open_steward

PICTURES = os.environ.get("PICTURES", "")

SERVICE = """job "web" {
  group "web" {
    count = 3

    update {
      max_parallel     = 3
      min_healthy_time = "0s"
    }

    network {
      port "http" {}
    }

    service {
      name     = "web"
      port     = "http"
      provider = "nomad"
      tags     = ["blue"]
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; while :; do echo $(date -u) GET /index.html 200; sleep 1 & wait; done"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
"""


def small(job_id: str, *command: str, memory: int = 16, **fields: Any) -> dict[str, Any]:
    """Return a batch job that is tried once."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": command[0], "args": command[1:]},
        "Resources": {"CPU": 20, "MemoryMB": memory},
    }
    group = {
        "Name": "main",
        "Tasks": [task],
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
    }
    return {"ID": job_id, "Type": "batch", "TaskGroups": [group], **fields}


async def submit(steward: Steward, source: str) -> None:
    job = await steward.post("/v1/jobs/parse", {"JobHCL": source, "Canonicalize": True})
    await steward.register(job, Submission={"Source": source, "Format": "hcl2"})


async def fill(steward: Steward) -> None:
    """Give the daemon some jobs of each kind."""
    for source in (SERVICE, SERVICE.replace("blue", "green").replace("= 32", "= 48")):
        await submit(steward, source)
        await steward.until(
            "/v1/job/web/deployment", lambda shown: shown and shown["Status"] == "successful"
        )
    for one in (
        small("nightly-report", "/bin/true"),
        small("import-orders", "/bin/false"),
        small("train-model", "/bin/true", memory=99_999_999),
        small("backup", "/bin/true", Periodic={"Spec": "0 3 * * *", "SpecType": "cron"}),
        small(
            "convert",
            "/bin/true",
            ParameterizedJob={"MetaRequired": ["file"], "MetaOptional": ["quality"]},
        ),
    ):
        await steward.register(one)
    await steward.post("/v1/job/convert/dispatch", {"Meta": {"file": "a.wav"}})
    await steward.until("/v1/job/import-orders", lambda shown: shown["Status"] == "dead")
    await steward.until("/v1/job/nightly-report", lambda shown: shown["Status"] == "dead")


async def see(browser: Tab, steward: Steward, path: str, picture: str = "") -> None:
    """Look at a page, and keep its picture when pictures are wanted."""
    await browser.open(f"{steward.address}/ui/{path}")
    await browser.until("document.querySelector('h1') !== null")
    assert await browser.value("document.querySelector('[role=alert]') === null")
    if picture and PICTURES:
        await browser.until(
            "document.body.dataset.follow === '' || "
            "!['', 'not connected'].includes(document.getElementById('live').textContent)"
        )
        await browser.picture(Path(PICTURES, f"ui-{picture}.png"))


@pytest.fixture
async def filled(tmp_path: Path) -> Any:
    """Run a daemon that asks nobody, with jobs of each kind."""
    async with open_steward(tmp_path, "--dev") as running:
        await fill(running)
        yield running


async def test_every_page_is_whole(browser: Tab, filled: Steward) -> None:
    (node,) = await filled.get("/v1/nodes")
    placed = await filled.allocations("web", "running", "complete")
    alloc = next(one for one in placed if one["ClientStatus"] == "running")

    await see(browser, filled, "", "overview")
    await see(browser, filled, "jobs")
    await see(browser, filled, "job/web", "job")
    await see(browser, filled, "job/web/definition", "definition")
    await see(browser, filled, "job/web/versions", "versions")
    await see(browser, filled, "job/web/compare?old=0&new=1", "compare")
    await see(browser, filled, "job/web/deployments")
    await see(browser, filled, "job/web/evaluations")
    await see(browser, filled, "job/train-model")
    await see(browser, filled, "job/backup/launches", "slots")
    await see(browser, filled, "job/convert/launches")
    await see(browser, filled, f"allocation/{alloc['ID']}", "allocation")
    await see(browser, filled, f"allocation/{alloc['ID']}/files")
    await see(browser, filled, f"allocation/{alloc['ID']}/logs")
    await browser.until_text("#log", "GET /index.html 200")
    await see(browser, filled, f"node/{node['ID']}")
    await see(browser, filled, f"evaluation/{alloc['EvalID']}")
    await see(browser, filled, "settings", "settings")
    lists = ("services", "nodes", "evaluations", "variables", "access")
    for path in (*lists, "run", "run?job=web", "sign-in"):
        await see(browser, filled, path)
    await see(browser, filled, "log")
    await browser.until_text("#events", "JobRegistered")

    await browser.open(f"{filled.address}/ui/run?job=web")
    changed = SERVICE.replace("blue", "green").replace("count = 3", "count = 5")
    await browser.write("textarea[name=source]", changed)
    await browser.press("form[action='/ui/plan'] button")
    await browser.until_text("#plan", "Everything would find a place")
    if PICTURES:
        await browser.value("document.getElementById('plan').scrollIntoView()")
        await browser.picture(Path(PICTURES, "ui-plan.png"))
    assert browser.faults == []
