"""The audit log over the API: actions of users and refused requests."""

import json
from pathlib import Path

import trio

from tests.service.daemon import Steward, open_steward

JOB = {
    "ID": "web",
    "Type": "batch",
    "TaskGroups": [
        {
            "Name": "g",
            "Count": 0,
            "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}],
        }
    ],
}


async def until_refusal(steward: Steward) -> list[dict[str, object]]:
    found: list[dict[str, object]] = await steward.until(
        "/v1/operator/audit", lambda shown: shown, refused=True
    )
    return found


async def test_audit_names_callers_and_refusals(tmp_path: Path) -> None:
    async with open_steward(tmp_path) as steward:
        await steward.register(JOB)
        token = steward.token
        steward.token = "a-guess"  # noqa: S105  # not a real secret
        assert (await steward.request("DELETE", "/v1/job/web")).status_code == 403
        steward.token = token
        (refused,) = await until_refusal(steward)
        assert (refused["Method"], refused["Path"], refused["Status"]) == (
            "DELETE",
            "/v1/job/web",
            403,
        )
        assert refused["Accessor"] == ""
        assert refused["SecretHash"]
        found = await steward.get("/v1/operator/audit", method="POST")
        own = await steward.get("/v1/acl/token/self")
        assert [(variable["Path"], variable["Accessor"]) for variable in found] == [
            ("/v1/jobs", own["AccessorID"])
        ]
        everything = json.dumps(await steward.get("/v1/operator/audit"))
        assert token not in everything
        assert "a-guess" not in everything


async def test_reads_of_a_secret_are_audited_if_configured(tmp_path: Path) -> None:
    settings = tmp_path / "steward.toml"
    settings.write_text("audit_reads = true\n")
    async with open_steward(tmp_path, "--config", str(settings)) as steward:
        await steward.post("/v1/var/a", {"Items": {"k": "hidden"}})
        await steward.get("/v1/var/a")
        await steward.get("/v1/vars")
        await steward.request("GET", "/v1/var/none")
        found = await steward.get("/v1/operator/audit", path="/v1/var")
        assert [(variable["Method"], variable["Path"]) for variable in found] == [
            ("GET", "/v1/var/a"),
            ("POST", "/v1/var/a"),
        ]
        assert "hidden" not in json.dumps(found)


async def test_audit_cannot_be_read_without_permission(tmp_path: Path) -> None:
    async with open_steward(tmp_path) as steward:
        steward.token = ""
        assert (await steward.request("GET", "/v1/operator/audit")).status_code == 403


async def test_audit_command_shows_pages_and_filters(steward: Steward) -> None:
    for number in range(3):
        await steward.post(f"/v1/var/a/{number}", {"Items": {"k": "hidden"}})
    await steward.request("DELETE", "/v1/var/a/0")
    shown = (await steward.cli("operator", "audit", "-path", "/v1/var/")).stdout.decode()
    assert [line.split()[4:6] for line in shown.splitlines()[1:]] == [
        ["DELETE", "/v1/var/a/0"],
        ["POST", "/v1/var/a/2"],
        ["POST", "/v1/var/a/1"],
        ["POST", "/v1/var/a/0"],
    ]
    assert "hidden" not in shown
    newest = await steward.cli("operator", "audit", "-n", "1", "-method", "post", "-json")
    assert [pair["Path"] for pair in json.loads(newest.stdout)] == ["/v1/var/a/2"]
    nothing = await steward.cli("operator", "audit", "-until", "1h")
    assert nothing.stdout == b"No entries\n"
    wrong = await steward.cli("operator", "audit", "-since", "yesterday")
    assert b"neither a time" in wrong.stderr


async def test_pages_are_consecutive(steward: Steward) -> None:
    for number in range(5):
        await steward.post(f"/v1/var/{number}", {"Items": {"k": "v"}})
    paths, token = [], ""
    while True:
        answer = await steward.request(
            "GET", "/v1/operator/audit", per_page=2, next_token=token, method="POST"
        )
        paths += [item["Path"] for item in answer.json()]
        token = answer.headers.get("X-Service-NextToken", "")
        if not token:
            break
    assert paths == [f"/v1/var/{number}" for number in (4, 3, 2, 1, 0)]


async def test_the_audit_is_copied_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    async with open_steward(tmp_path, "--dev", "--audit-file", str(file)) as steward:
        await steward.post("/v1/var/a", {"Items": {"k": "v"}})
        await steward.stop()
        await steward.start()
        with trio.fail_after(20):
            while not file.exists():
                await trio.lowlevel.checkpoint()
    assert json.loads(file.read_text().splitlines()[0])["Path"] == "/v1/var/a"
