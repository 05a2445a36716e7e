"""The commands for policies and tokens against a real daemon, without a secret on the command line."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.service.daemon import Steward, open_steward

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test
RULES = 'namespace "default" { policy = "read" }\npath "sys/auth" { capabilities = ["read"] }\n'


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon that requires tokens and has none yet."""
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        yield steward


async def run(steward: Steward, *words: str, stdin: str = "", token: str = SECRET) -> str:
    """Run a command that must succeed; return its output."""
    done = await steward.cli(*words, stdin=stdin, STEWARD_TOKEN=token)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_user_sets_up_access_control(guarded: Steward, tmp_path: Path) -> None:
    first = await run(guarded, "acl", "bootstrap", "-", stdin=SECRET, token="")
    assert SECRET in first
    rules = tmp_path / "rules.hcl"
    rules.write_text(RULES)
    await run(guarded, "acl", "policy", "apply", "-description", "staff", "staff", str(rules))
    assert "staff" in await run(guarded, "acl", "policy", "list")
    assert RULES in await run(guarded, "acl", "policy", "info", "staff")
    await run(guarded, "acl", "role", "create", "-name", "crew", "-policy", "staff")
    made = await run(
        guarded, "acl", "token", "create", "-name", "anna", "-role-name", "crew", "-json"
    )
    token = msgspec.json.decode(made)
    accessor = token["AccessorID"]
    assert accessor in await run(guarded, "acl", "token", "list")
    assert "anna" in await run(guarded, "acl", "token", "self", token=token["SecretID"])
    await run(guarded, "acl", "token", "update", "-name", "bob", accessor)
    shown = await run(guarded, "acl", "token", "info", accessor)
    assert "bob" in shown
    assert "crew" in shown
    await run(guarded, "acl", "role", "update", "-description", "all of them", "crew")
    assert "all of them" in await run(guarded, "acl", "role", "info", "crew")
    await run(guarded, "acl", "token", "delete", accessor)
    await run(guarded, "acl", "role", "delete", "crew")
    await run(guarded, "acl", "policy", "delete", "staff")


async def test_user_creates_and_revokes_vault_tokens(guarded: Steward) -> None:
    await run(guarded, "acl", "bootstrap", "-", stdin=SECRET, token="")
    await run(guarded, "policy", "write", "staff", "-", stdin=RULES)
    assert (await run(guarded, "policy", "list")).split() == ["default", "root", "staff"]
    assert await run(guarded, "policy", "read", "staff") == RULES
    words = ("token", "create", "-policy", "staff", "-ttl", "1h", "-metadata", "a=b", "-json")
    auth = msgspec.json.decode(await run(guarded, *words))["auth"]
    secret = auth["client_token"]
    looked = await run(guarded, "token", "lookup", "-", stdin=secret)
    assert auth["accessor"] in looked
    assert "3600" in await run(guarded, "token", "lookup", token=secret)
    assert await run(guarded, "token", "capabilities", "sys/auth", token=secret) == "read\n"
    assert await run(guarded, "token", "capabilities", "-", "sys/auth", stdin=secret) == "read\n"
    assert "120" in await run(guarded, "token", "renew", "-increment", "2m", token=secret)
    await run(guarded, "token", "revoke", "-accessor", auth["accessor"])
    ended = await guarded.cli("token", "lookup", STEWARD_TOKEN=secret)
    assert ended.returncode == 1
    assert b"permission denied; use --token" in ended.stderr
    await run(guarded, "policy", "delete", "staff")


async def test_a_refusal_is_explained(guarded: Steward) -> None:
    await run(guarded, "acl", "bootstrap", "-", stdin=SECRET, token="")
    await run(guarded, "policy", "write", "staff", "-", stdin=RULES)
    made = await run(guarded, "token", "create", "-policy", "staff", "-json")
    accessor = msgspec.json.decode(made)["auth"]["accessor"]
    allowed = await run(guarded, "policy", "explain", accessor, "GET", "/v1/jobs")
    assert 'namespace "default"' in allowed
    refused = await guarded.cli(
        "policy", "explain", accessor, "POST", "/v1/jobs", STEWARD_TOKEN=SECRET
    )
    assert refused.returncode == 2
    assert b"submit-job or register-job on the namespace default" in refused.stdout


async def test_token_is_read_from_a_file_readable_only_by_its_owner(
    guarded: Steward, tmp_path: Path
) -> None:
    await run(guarded, "acl", "bootstrap", "-", stdin=SECRET, token="")
    file = tmp_path / "token"
    file.write_text(SECRET)
    file.chmod(0o640)
    open_to_others = await guarded.cli("node", "status", STEWARD_TOKEN_FILE=str(file))
    assert open_to_others.returncode == 1
    assert f"chmod 600 {file}".encode() in open_to_others.stderr
    file.chmod(0o600)
    own = await guarded.cli("node", "status", STEWARD_TOKEN_FILE=str(file))
    assert own.returncode == 0
    missing = await guarded.cli("node", "status", STEWARD_TOKEN_FILE=f"{file}.not")
    assert b"which does not exist" in missing.stderr


@pytest.fixture
async def ruled(guarded: Steward) -> Steward:
    """Run a daemon whose bootstrap token exists."""
    await run(guarded, "acl", "bootstrap", "-", stdin=SECRET, token="")
    return guarded


async def test_a_login_method_is_enabled_tuned_and_disabled(ruled: Steward) -> None:
    done = await run(ruled, "auth", "enable", "-path", "ours", "-description", "of us", "cloudid")
    assert done == "cloudid is enabled at ours/\n"
    await run(ruled, "auth", "tune", "-default-lease-ttl", "90m", "ours")
    listed = (await run(ruled, "auth", "list")).splitlines()
    assert [line.split()[:2] for line in listed] == [
        ["Path", "Type"],
        ["ours/", "cloudid"],
        ["token/", "token"],
    ]
    assert listed[1].endswith("of us")
    assert await run(ruled, "read", "-field", "default_lease_ttl", "sys/auth/ours/tune") == "5400\n"
    assert await run(ruled, "auth", "disable", "ours/") == "ours/ was disabled\n"
    assert "ours" not in await run(ruled, "auth", "list")


async def test_any_path_is_written_listed_read_and_deleted(ruled: Steward) -> None:
    await run(ruled, "auth", "enable", "cloudid")
    policies = ("token_policies=a", "token_policies=b", "token_ttl=1h")
    bound = "bound_subscription_ids=11111111-1111-1111-1111-111111111111"
    done = await run(ruled, "write", "auth/cloudid/role/web", bound, *policies)
    assert done == "written to auth/cloudid/role/web\n"
    await run(ruled, "write", "auth/cloudid/role/db", "-", stdin='{"bound_locations": ["x"]}')
    assert await run(ruled, "list", "auth/cloudid/role") == "db\nweb\n"
    shown = await run(ruled, "read", "auth/cloudid/role/web")
    assert "token_policies" in shown
    assert "a, b" in shown
    assert await run(ruled, "delete", "auth/cloudid/role/web") == "removed: auth/cloudid/role/web\n"
    assert await run(ruled, "list", "auth/cloudid/role") == "db\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("var purge a/b", 'there is no variable "a/b"'),
        ("acl policy delete nope", 'there is no policy "nope"'),
        ("policy delete nope", 'there is no policy "nope"'),
        ("auth disable nope/", 'there is no login method "nope"'),
        ("delete auth/token/roles/nope", 'there is no token role "nope"'),
        ("delete auth/cloudid/role/nope", 'there is no role "nope"'),
        ("delete auth/cloudid/config", 'there is no configuration of "cloudid"'),
        ("delete identity/entity/id/nope", 'there is no entity "nope"'),
        ("delete identity/entity/name/nope", 'there is no entity "nope"'),
        ("delete identity/entity-alias/id/nope", 'there is no alias "nope"'),
        ("delete identity/group/id/nope", 'there is no group "nope"'),
        ("delete identity/group/name/nope", 'there is no group "nope"'),
        ("delete identity/group-alias/id/nope", 'there is no alias "nope"'),
    ],
)
async def test_deletion_of_nothing_is_reported(ruled: Steward, words: str, text: str) -> None:
    await run(ruled, "auth", "enable", "cloudid")
    assert await run(ruled, *words.split()) == f"nothing was deleted: {text}\n"


async def test_revocation_of_nothing_is_reported(ruled: Steward) -> None:
    revoked = await run(ruled, "token", "revoke", "nope")
    assert revoked == "nothing was revoked: there is no token with this secret\n"
    revoked = await run(ruled, "token", "revoke", "-accessor", "nope")
    assert revoked == "No token found with this accessor\n"


async def test_invalid_path_is_reported(ruled: Steward) -> None:
    async def said(*words: str) -> str:
        done = await ruled.cli(*words, STEWARD_TOKEN=SECRET)
        assert done.returncode == 1
        return done.stderr.decode()

    assert "nothing to write" in await said("write", "auth/token/create")
    assert "'x' is not of the form NAME=VALUE" in await said("write", "auth/token/create", "x")
    assert "cannot read /nowhere" in await said("write", "auth/token/create", "x=@/nowhere")
    assert "there is no 'x', only: " in await said("read", "-field", "x", "auth/token/lookup-self")
    assert "no changes given: pass at least one option" in await said("auth", "tune", "cloudid")
    assert "status 404" in await said("read", "no/such/path")


async def test_write_without_data_is_accepted(ruled: Steward) -> None:
    token = await run(ruled, "write", "-force", "-field", "client_token", "auth/token/create")
    assert len(token) > 20
