"""A real daemon sends a notification of a failed job in spite of interruptions."""

import base64
from pathlib import Path

from tests.fakes.receiver import open_receiver
from tests.service.daemon import Steward, open_steward

SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


def failing(url: str, job_id: str = "web") -> dict[str, object]:
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


async def test_failure_notification_arrives_after_two_refusals(steward: Steward) -> None:
    await steward.post("/v1/var/steward/notify", {"Items": {"secret": SECRET}})
    async with open_receiver() as receiver:
        receiver.answers = [500, 503]
        await steward.register(failing(receiver.url))
        (sent,) = await steward.until(
            "/v1/job/web/notifications",
            lambda shown: [item["Status"] for item in shown] == ["sent"],
        )
        assert (sent["Event"], sent["Attempts"]) == ("failure", 3)
        assert sent["Webhook"] == receiver.url.partition("?")[0]
        assert len({request.headers["webhook-id"] for request in receiver.received}) == 1
    shown = await steward.cli("job", "notifications", "web")
    assert b"failure" in shown.stdout


async def test_crash_between_a_failure_and_its_notification_loses_nothing(steward: Steward) -> None:
    await steward.post("/v1/var/steward/notify", {"Items": {"secret": SECRET}})
    async with open_receiver() as receiver:
        receiver.answers = [0]
        await steward.register(failing(receiver.url))
        (lost,) = await receiver.until(1)  # the receiver gets it, and its response is lost
        await steward.kill_and_restart()
        _, again = await receiver.until(2)
        assert again.headers["webhook-id"] == lost.headers["webhook-id"]
        await steward.until(
            "/v1/job/web/notifications",
            lambda shown: [item["Status"] for item in shown] == ["sent"],
        )


async def test_receivers_are_tested_by_the_command_line(tmp_path: Path) -> None:
    async with open_receiver() as receiver:
        address = receiver.url.partition("/hook")[0]
        file = tmp_path / "steward.toml"
        text = f'[notify_receivers.alerts]\nkind = "alertmanager"\nurl = "{address}"\n'
        file.write_text(f'{text}group_seconds = 0\n[notify_commands]\nmail = ["/bin/true"]\n')
        async with open_steward(tmp_path, "--dev", "--config", str(file)) as steward:
            good = await steward.cli("notify", "test")
            assert (good.returncode, good.stdout.count(b"sent")) == (0, 2)
            receiver.answers = [500]
            bad = await steward.cli("notify", "test", "alerts")
            assert bad.returncode == 1
            assert b"the receiver answered with 500" in bad.stdout
            unknown = await steward.cli("notify", "test", "nigth")
            assert unknown.returncode == 1
            assert b'no receiver "nigth"' in unknown.stderr
            await steward.register({**failing(""), "Meta": {"steward_notify_to": "alerts"}})
            *_, sent = await receiver.until(3)
    (alert,) = sent.told
    assert alert["labels"]["job"] == "web"
    assert alert["annotations"]["exit"] == "exit code 1"


async def test_receiver_test_needs_the_agent_write_capability(tmp_path: Path) -> None:
    async with open_receiver() as receiver:
        address = receiver.url.partition("/hook")[0]
        file = tmp_path / "steward.toml"
        text = f'[notify_receivers.night]\nkind = "alertmanager"\nurl = "{address}"\n'
        file.write_text(f"{text}group_seconds = 0\n")
        async with open_steward(tmp_path, "--dev", "--acl", "--config", str(file)) as steward:
            secret = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test
            await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": secret})
            steward.token = secret
            rules = {"Name": "look", "Rules": 'operator { policy = "read" }'}
            await steward.request("POST", "/v1/acl/policy/look", rules)
            asked = {"Name": "reader", "Type": "client", "Policies": ["look"]}
            reader = (await steward.post("/v1/acl/token", asked))["SecretID"]
            for token in ("", reader):
                steward.token = token
                refused = await steward.cli("notify", "test", STEWARD_TOKEN=token)
                assert (refused.returncode, refused.stdout) == (1, b"")
                assert b"Permission denied" in refused.stderr
            steward.token = secret
            sent = await steward.cli("notify", "test", STEWARD_TOKEN=secret)
            assert sent.returncode == 0
            assert len(await receiver.until(1)) == 1  # only the permitted test was sent
