"""Somebody is told of a job that fails, by a real daemon, whatever comes between."""

import base64

from tests.fakes.receiver import open_receiver
from tests.service.daemon import Steward

SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


def failing(url: str, job_id: str = "web") -> object:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/false"},
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
    }
    group = {
        "Name": "g",
        "Tasks": [task],
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
    }
    meta = {"steward_notify_webhook": url}
    return {"ID": job_id, "Type": "batch", "Meta": meta, "TaskGroups": [group]}


async def test_a_failure_arrives_though_it_is_refused_twice(steward: Steward) -> None:
    await steward.post("/v1/var/steward/notify", {"Items": {"secret": SECRET}})
    async with open_receiver() as receiver:
        receiver.answers = [500, 503]
        await steward.register(failing(receiver.url))
        (sent,) = await steward.until(
            "/v1/job/web/notifications",
            lambda shown: [one["Status"] for one in shown] == ["sent"],
        )
        assert (sent["Event"], sent["Attempts"]) == ("failure", 3)
        assert sent["Webhook"] == receiver.url.partition("?")[0]
        assert len({one.headers["webhook-id"] for one in receiver.received}) == 1
    shown = await steward.cli("job", "notifications", "web")
    assert b"failure" in shown.stdout


async def test_a_crash_between_the_failure_and_its_telling_loses_nothing(steward: Steward) -> None:
    await steward.post("/v1/var/steward/notify", {"Items": {"secret": SECRET}})
    async with open_receiver() as receiver:
        receiver.answers = [0]
        await steward.register(failing(receiver.url))
        (lost,) = await receiver.until(1)  # it hears of it, and its answer never comes
        await steward.kill_and_restart()
        _, again = await receiver.until(2)
        assert again.headers["webhook-id"] == lost.headers["webhook-id"]
        await steward.until(
            "/v1/job/web/notifications",
            lambda shown: [one["Status"] for one in shown] == ["sent"],
        )
