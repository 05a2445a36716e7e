"""A UI user has the permissions of their token; a cross-origin page has none."""

import pytest

from daemon.web.ui_session import HEADERS
from tests.parts.ui.conftest import READER, Browser, Site
from tests.samples import job

TASK = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}


@pytest.fixture
async def reader(site: Site) -> Browser:
    """Yield the browser of a user with read permissions only."""
    await site.run()
    browser = site.browser()
    await browser.sign_in(await site.token(READER))
    return browser


@pytest.fixture
async def master(site: Site) -> Browser:
    """Yield the browser of a user with all permissions."""
    await site.run()
    browser = site.browser()
    await browser.sign_in(await site.token())
    return browser


async def test_settings_page_needs_no_node_permission(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token('agent { policy = "read" }'))
    answer = await browser.get("/ui/settings")
    assert answer.status_code == 200
    assert "retention_events" in answer.text
    assert "Enforced limits" not in answer.text


async def test_reader_sees_the_job(reader: Browser) -> None:
    assert "web" in (await reader.get("/ui/jobs")).text
    assert (await reader.get("/ui/job/web")).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/ui/job/web/stop", {}),
        ("/ui/job/web/start", {}),
        ("/ui/job/web/scale", {"group": "web", "count": "3"}),
        ("/ui/job/web/revert", {"version": "0"}),
        ("/ui/job/web/dispatch", {}),
        ("/ui/job/web/force", {}),
        ("/ui/job/web/pause", {}),
        ("/ui/job/web/evaluate", {}),
        ("/ui/allocation/{alloc}/stop", {}),
        ("/ui/allocation/{alloc}/restart", {}),
        ("/ui/node/{node}/eligibility", {"eligibility": "ineligible"}),
        ("/ui/node/{node}/drain", {"enable": "1"}),
    ],
)
async def test_read_permission_does_not_permit_changes(
    site: Site, reader: Browser, path: str, fields: dict[str, str]
) -> None:
    (allocation,) = site.cluster.allocations()
    before = site.cluster.store.read(lambda db: db.last_index())
    answer = await reader.send(
        path.format(alloc=allocation.id, node=allocation.node_id), None, **fields
    )
    assert answer.status_code == 403
    assert site.cluster.store.read(lambda db: db.last_index()) == before


@pytest.mark.parametrize("path", ["/ui/plan", "/ui/run"])
async def test_read_permission_permits_neither_plans_nor_runs(reader: Browser, path: str) -> None:
    answer = await reader.send(path, None, source='job "x" {}', index="0")
    assert answer.status_code in (400, 403)
    assert "Permission denied" in answer.text


async def test_other_namespaces_are_hidden_like_in_the_api(site: Site, reader: Browser) -> None:
    await site.cluster.register(job("veiled", namespace="other"))
    assert "veiled" not in (await reader.get("/ui/jobs")).text
    assert (await reader.get("/ui/job/veiled?namespace=other")).status_code == 403


async def test_stop_permission_stops_a_job(site: Site, master: Browser) -> None:
    answer = await master.send("/ui/job/web/stop", None, back="/ui/job/web")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/job/web")
    assert site.cluster.job().stop


async def test_a_stopped_job_starts_again(open_site: Site) -> None:
    browser = open_site.browser()
    given = {"ID": "web", "TaskGroups": [{"Name": "g", "Tasks": [TASK]}]}
    assert (await browser.http.post("/v1/jobs", json={"Job": given})).status_code == 200
    await browser.send("/ui/job/web/stop")
    assert open_site.cluster.job().stop
    assert (await browser.send("/ui/job/web/start")).status_code == 303
    assert not open_site.cluster.job().stop


async def test_a_group_is_scaled(site: Site, master: Browser) -> None:
    await master.send("/ui/job/web/scale", None, group="web", count="3")
    assert [task_group.count for task_group in site.cluster.job().task_groups or ()] == [3]


@pytest.mark.parametrize("count", ["", "-1", "many", "99999999999"])
async def test_invalid_count_is_reported(site: Site, master: Browser, count: str) -> None:
    answer = await master.send("/ui/job/web/scale", None, group="web", count=count)
    assert answer.status_code == 400
    assert "is not a whole number" in answer.text


async def test_node_is_drained_and_made_eligible(site: Site, master: Browser) -> None:
    (allocation,) = site.cluster.allocations()
    path = f"/ui/node/{allocation.node_id}"
    assert (await master.send(f"{path}/drain", None, enable="1")).status_code == 303
    assert "draining" in (await master.get(path)).text
    assert (await master.send(f"{path}/drain")).status_code == 303
    text = (await master.get(path)).text
    assert ("draining" in text, "is-eligible" in text) == (False, True)


# ---- foreign pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},  # another service of the same host
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_cross_origin_form_is_refused(
    site: Site, master: Browser, headers: dict[str, str]
) -> None:
    answer = await master.send("/ui/job/web/stop", headers)
    assert answer.status_code == 403
    assert not site.cluster.job().stop


async def test_form_without_a_csrf_token_is_refused(site: Site, master: Browser) -> None:
    for proof in ("", "x", await site.browser().proof()):
        answer = await master.send("/ui/job/web/stop", None, proof=proof)
        assert answer.status_code == 403
    assert not site.cluster.job().stop


async def test_form_with_another_content_type_is_refused(site: Site, master: Browser) -> None:
    proof = await master.proof()
    answer = await master.http.post(
        "/ui/job/web/stop",
        content=f"proof={proof}",
        headers={"Origin": site.address, "Content-Type": "text/plain"},
    )
    assert answer.status_code == 403


async def test_get_requests_change_nothing(master: Browser) -> None:
    assert (await master.get("/ui/job/web/stop")).status_code == 405


@pytest.mark.parametrize("path", ["/ui/", "/ui/sign-in", "/ui/job/nothing", "/ui/static/app.js"])
async def test_every_response_forbids_frames_and_third_party_scripts(
    master: Browser, path: str
) -> None:
    found = (await master.get(path)).headers
    assert {name: found.get(name) for name in HEADERS} == HEADERS
