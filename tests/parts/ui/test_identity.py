"""Access control in the web interface: changes by forms, and explained permissions."""

import re

import httpx
import pytest

from storage.queries import policies, tokens
from storage.records.acl import AclRole, Policy, Token
from tests.parts.ui.conftest import Browser, Site
from tests.samples import NOW

RULES = 'namespace "default" {\n  policy = "read"\n}\n'


def token_named(site: Site, name: str) -> Token:
    (found,) = (token for token in site.cluster.store.read(tokens.list_all) if token.name == name)
    return found


def policy(site: Site, name: str) -> Policy | None:
    return site.cluster.store.read(lambda db: policies.find(db, name))


def role(site: Site, name: str) -> AclRole | None:
    return site.cluster.store.read(lambda db: policies.role_named(db, name))


async def make_policy(browser: Browser, name: str = "ours", rules: str = RULES) -> httpx.Response:
    fields = {"name": name, "description": "to look", "rules": rules}
    return await browser.send("/ui/policies", None, **fields)


async def test_policy_is_created_shown_changed_and_deleted(site: Site, master: Browser) -> None:
    assert (await make_policy(master)).headers["Location"] == "/ui/policy/ours"
    assert "namespace &#34;default&#34;" in (await master.get("/ui/policy/ours")).text
    await make_policy(master, rules=RULES.replace("read", "write").replace("\n", "\r\n"))
    changed = policy(site, "ours")
    assert changed is not None
    assert changed.rules == RULES.replace("read", "write")
    await master.send("/ui/policy/ours/remove")
    assert policy(site, "ours") is None


async def test_new_policy_does_not_replace_another(site: Site, master: Browser) -> None:
    await make_policy(master)
    fields = {"name": "ours", "rules": RULES.replace("read", "write"), "new": "1"}
    answer = await master.send("/ui/policies", None, **fields)
    assert answer.status_code == 400
    kept = policy(site, "ours")
    assert kept is not None
    assert kept.rules == RULES


async def test_invalid_rules_are_reported(site: Site, master: Browser) -> None:
    answer = await make_policy(master, rules="namespace {")
    assert answer.status_code == 400
    assert policy(site, "ours") is None


async def test_the_secret_of_a_new_token_is_shown_once(site: Site, master: Browser) -> None:
    await make_policy(master)
    fields = {"name": "robot", "type": "client", "policy.ours": "1", "ttl": "8h"}
    text = (await master.send("/ui/tokens", None, **fields)).text
    secret = re.search(r'id="secret">([^<]+)<', text)
    assert secret is not None
    made = site.parts.tokens.resolve(secret[1]).token
    assert (made.name, made.policies, made.expires_at) == ("robot", ("ours",), NOW + made.ttl)
    for page in ("/ui/access", "/ui/policy/ours"):
        assert secret[1] not in (await master.get(page)).text


async def test_revoked_token_gives_no_access(site: Site, master: Browser) -> None:
    secret = await site.token(name="old")
    other = site.browser()
    await other.sign_in(secret)
    await master.send(f"/ui/token/{token_named(site, 'old').accessor}/end")
    assert (await other.get("/ui/jobs")).status_code == 303


async def test_a_token_without_a_capability_is_refused(site: Site, master: Browser) -> None:
    answer = await master.send("/ui/tokens", None, name="robot", type="client")
    assert answer.status_code == 400
    assert "missing policies or roles" in answer.text


async def test_role_is_created_changed_and_deleted(site: Site, master: Browser) -> None:
    await make_policy(master)
    await make_policy(master, "more")
    fields = {"name": "developers", "description": "people"}
    await master.send("/ui/roles", None, **fields, **{"policy.ours": "1"})
    made = role(site, "developers")
    assert made is not None
    assert 'name="policy.ours" value="1" checked' in (await master.get(f"/ui/role/{made.id}")).text
    await master.send("/ui/roles", None, id=made.id, **fields, **{"policy.more": "1"})
    changed = role(site, "developers")
    assert changed is not None
    assert [link.name for link in changed.policies or ()] == ["more"]
    await master.send(f"/ui/role/{made.id}/remove")
    assert role(site, "developers") is None


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/ui/tokens", {"name": "x", "type": "management"}),
        ("/ui/token/{accessor}/end", {}),
        ("/ui/policies", {"name": "x", "rules": RULES}),
        ("/ui/policy/theirs/remove", {}),
        ("/ui/roles", {"name": "x", "policy.theirs": "1"}),
        ("/ui/role/none/remove", {}),
        ("/ui/explain", {"path": "/v1/jobs", "method": "GET"}),
        ("/ui/method/token/explain", {"role": "x", "jwt": "y"}),
    ],
)
async def test_read_permission_does_not_permit_changes(
    site: Site, reader: Browser, path: str, fields: dict[str, str]
) -> None:
    await site.token(name="other")
    accessor = token_named(site, "other").accessor
    before = site.cluster.store.read(lambda db: db.last_index())
    answer = await reader.send(path.format(accessor=accessor), None, **fields)
    assert answer.status_code == 403
    assert site.cluster.store.read(lambda db: db.last_index()) == before


async def test_read_permission_offers_no_forms(reader: Browser) -> None:
    text = (await reader.get("/ui/access")).text
    assert "/ui/policy/theirs" in text
    assert 'action="/ui/tokens"' not in text
    assert "Required: a management token" in text


async def test_request_is_explained_for_a_token_and_a_policy(site: Site, master: Browser) -> None:
    await site.token('namespace "default" { policy = "read" }', name="robot")
    asked = {"method": "GET", "path": "/v1/job/web"}
    robot = token_named(site, "robot").accessor
    for who in ({"token": robot}, {"policy": "theirs"}):
        allowed = (await master.send("/ui/explain", None, **asked, **who)).text
        assert "is-allowed" in allowed
        assert "namespace &#34;default&#34;" in allowed
        assert "steward operator api -X POST -d &#39;{&#34;Method&#34;" in allowed
        refused = await master.send("/ui/explain", None, method="GET", path="/v1/nodes", **who)
        assert "is-refused" in refused.text
    nobody = (await master.send("/ui/explain", None, **asked, token="")).text
    assert "is-refused" in nobody


async def test_invalid_explain_request_is_refused(master: Browser) -> None:
    for fields in ({"path": ""}, {"path": "/v1/jobs", "policy": "none"}, {"path": "/nothing"}):
        answer = await master.send("/ui/explain", None, method="GET", **fields)
        assert answer.status_code in (400, 404)
