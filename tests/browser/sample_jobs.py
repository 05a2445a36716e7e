"""A daemon with some jobs of each kind, for pages to show."""

from typing import Any

from tests.service.daemon import Steward

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


WORKFLOW = """job "etl" {
  type = "batch"

  group "extract" {
    meta {
      steward_when = "always"
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["0.2"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
"""
STEPS = (
    ("clean", 'steward_needs = "extract"', "/bin/sleep", "0.4"),
    ("check", 'steward_needs = "extract"', "/bin/sleep", "0.1"),
    ("train", 'steward_needs = "clean, check"', "/bin/sleep", "0.3"),
    ("compare", 'steward_needs = "clean"', "/bin/false", ""),
    (
        "publish",
        'steward_needs = "train"\n      steward_gate = "Publish the model?"',
        "/bin/true",
        "",
    ),
    ("mail", 'steward_needs = "*"\n      steward_when = "failure"', "/bin/true", ""),
)


def workflow() -> str:
    """Return a workflow with a failure and a gate."""
    groups = [
        f"""
  group "{name}" {{
    restart {{
      attempts = 0
      mode     = "fail"
    }}

    reschedule {{
      attempts  = 0
      unlimited = false
    }}

    meta {{
      {meta}
    }}

    task "main" {{
      driver = "raw_exec"

      config {{
        command = "{command}"
        args    = ["{argument}"]
      }}

      resources {{
        cpu    = 20
        memory = 16
      }}
    }}
  }}
"""
        for name, meta, command, argument in STEPS
    ]
    return "".join([WORKFLOW, *groups, "}\n"])


def small(job_id: str, *command: str, memory: int = 16, **fields: Any) -> dict[str, Any]:
    """Return a batch job without retries."""
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
    """Create some jobs of each kind in the daemon."""
    for source in (SERVICE, SERVICE.replace("blue", "green").replace("= 32", "= 48")):
        await submit(steward, source)
        await steward.until(
            "/v1/job/web/deployment", lambda shown: shown and shown["Status"] == "successful"
        )
    await submit(steward, workflow())
    for item in (
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
        await steward.register(item)
    await steward.post("/v1/job/convert/dispatch", {"Meta": {"file": "a.wav"}})
    await steward.until("/v1/job/import-orders", lambda shown: shown["Status"] == "dead")
    await steward.until("/v1/job/nightly-report", lambda shown: shown["Status"] == "dead")
    await steward.until(
        "/v1/job/etl/run",
        lambda shown: {"held", "failed"} <= {step["State"] for step in shown["Steps"]},
    )


async def fill_plans(steward: Steward) -> None:
    """Create a calendar, a queue with a waiting run, a freeze and a variable."""
    calendar = {
        "Weekdays": ["mon", "tue", "wed", "thu", "fri"],
        "Hours": ["08:00-18:00"],
        "Holidays": {"2026-12-25": "Christmas Day"},
    }
    await steward.post("/v1/calendar/business", calendar)
    for name in ("report-a", "report-b"):
        meta = {"steward_run_concurrency": "reports"}
        await steward.register(small(name, "/bin/sleep", "600", Meta=meta))
    await steward.until(
        "/v1/concurrency/reports", lambda shown: shown["InUse"] == 1 and shown["Waiting"] == 1
    )
    freeze = {"Reason": "Closing of the year", "Jobs": "ledger-*", "Strength": "begin"}
    await steward.post("/v1/freeze", {**freeze, "Namespace": "default", "Until": "+2h"})
    await steward.post("/v1/var/app", {"Path": "app", "Items": {"user": "shop", "password": "x"}})


async def fill_access(steward: Steward) -> tuple[str, str]:
    """Create a policy, a role, a login method and an auth method.

    Return the IDs of the role and of the binding rule.
    """
    rules = 'namespace "default" { policy = "read" }'
    policy = {"Name": "lookers", "Rules": rules}
    answer = await steward.request("POST", "/v1/acl/policy/lookers", policy)
    assert answer.is_success, answer.text
    role = {"Name": "readers", "Policies": [{"Name": "lookers"}]}
    made = await steward.post("/v1/acl/role", role)
    await steward.post(
        "/v1/acl/token", {"Name": "robot", "Type": "client", "Policies": ["lookers"]}
    )
    for path, body in (
        ("sys/auth/azure", {"type": "azure"}),
        (
            "auth/azure/config",
            {"tenant_id": "7f6ad4f4", "resource": "https://management.azure.com/"},
        ),
        ("auth/azure/role/web", {"bound_locations": ["westeurope"], "policies": ["lookers"]}),
    ):
        answer = await steward.request("POST", f"/v1/{path}", body)
        assert answer.is_success, answer.text
    method = {
        "Name": "ci",
        "Type": "JWT",
        "TokenLocality": "local",
        "MaxTokenTTL": "15m",
        "Config": {"JWKSURL": "https://ci.example/keys", "BoundAudiences": ["steward"]},
    }
    await steward.post("/v1/acl/auth-method", method)
    rule = {"AuthMethod": "ci", "BindType": "policy", "BindName": "lookers"}
    bound = await steward.post("/v1/acl/binding-rule", rule)
    return made["ID"], bound["ID"]
