"""Every page over a store with objects; a page contains only the markup of its template."""

import gzip
import hashlib
import re
from html import unescape
from html.parser import HTMLParser
from urllib.parse import quote

import msgspec
import pytest
import trio

from daemon.config.data_directory import payload_dir
from daemon.ui import cluster as cluster_pages
from daemon.ui import job as job_pages
from daemon.ui.routes import PAGES
from daemon.web import ui_session
from storage.queries import (
    cluster_runs,
    job_status,
    jobs,
    kept_files,
    payload_files,
    periodic,
    services,
)
from storage.records.allocation import ClientStatus
from storage.records.base import HOUR
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.group import ReschedulePolicy, Update
from storage.records.job import Parameterized, Periodic
from storage.records.node import DriverInfo, NodeCPU, NodeMemory
from storage.records.service import CheckResult, CheckStatus, Registration, ServiceAddress
from storage.records.task import Resources, Service
from storage.writer import Transaction
from tests.parts.ui.conftest import Browser, Site
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import cluster, host, node, resources

NEVER = ReschedulePolicy(attempts=0, unlimited=False)
HEAVIEST = 60_000  # bytes of a page with its styles and scripts, compressed
FILES = re.compile(r'(?:src|href|data-live-script)="(/ui/static/[^"]+)"')
APART = re.compile("/(editor|xterm|terminal)")  # files that the limit does not include
EVIL = '<script>alert("1")</script><img src=x onerror=alert(2)>'

LINKED = re.compile(r'<td[^>]*><a href="/ui/job/[^"]*">([^<]*)</a>')  # matches a job in a list
LOADED = ("/ui/static/app.js", "/ui/static/live.js", "/ui/static/style.css", "/ui/static/icon.svg")


class Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def strange(text: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return the elements of a page that run scripts, have styles or embed other content."""
    return [
        (tag, attributes)
        for tag, attributes in Elements(text).found
        if (tag == "script" and "src" not in attributes)
        or tag in ("style", "iframe", "object", "img")
        or any(name == "style" or name.startswith("on") for name in attributes)
        or "javascript:" in str(attributes.get("href"))
    ]


async def filled(site: Site, job_id: str = "web", browser: Browser | None = None) -> dict[str, str]:
    """Fill the store; return the values of the placeholders in paths."""
    await site.run(job_id)
    (allocation,) = site.cluster.allocations(job_id)
    given = {"Path": "app", "Items": {"key": "value"}}
    if browser is None:
        assert (await site.browser().http.post("/v1/var/app", json=given)).is_success
    else:
        stored = {"path": "app", "name.1": "key", "value.1": "value"}
        assert (await browser.send("/ui/variables", None, **stored)).status_code == 303
    return {
        "path": "app",
        "job_id": job_id,
        "alloc_id": allocation.id,
        "eval_id": allocation.eval_id,
        "node_id": allocation.node_id,
        "name": "style.css",
        "role_id": "none",
        "rule_id": "none",
    }


# Pages of objects that the site does not have: files without a runner, policies without access
# control, login methods and calendars.
MISSING = {
    "/ui/allocation/{alloc_id}/files": 404,
    "/ui/policy/{name}": 400,
    "/ui/role/{role_id}": 400,
    "/ui/method/{path}": 404,
    "/ui/method/{path}/edit": 404,
    "/ui/method/{path}/config": 404,
    "/ui/method/{path}/roles": 404,
    "/ui/method/{path}/role/{name}": 404,
    "/ui/auth-method/{name}": 400,
    "/ui/auth-method/{name}/edit": 400,
    "/ui/auth-method/{name}/rules": 400,
    "/ui/binding-rule/{rule_id}": 400,
    "/ui/calendar/{name}": 404,
    "/ui/job/{job_id}/run": 404,  # the job is not a workflow
    "/ui/not-found": 404,
}
# Streams and files of tasks are not pages.
NO_PAGE = {
    "/ui/events",
    "/ui/payload/{digest}",
    "/ui/job/{job_id}/log",
    "/ui/allocation/{alloc_id}/log",
    "/ui/allocation/{alloc_id}/lines",
    "/ui/allocation/{alloc_id}/file",
    "/ui/allocation/{alloc_id}/kept",
}
SHOWN = [page.path for page in PAGES if page.method == "GET" and page.path not in NO_PAGE]


@pytest.mark.parametrize("path", SHOWN)
async def test_every_page_is_shown(open_site: Site, path: str) -> None:
    found = await filled(open_site)
    answer = await open_site.browser().get(path.format_map(found))
    assert answer.status_code == MISSING.get(path, 200), answer.text


async def test_every_page_with_its_files_is_small(open_site: Site) -> None:
    found = await filled(open_site)
    browser = open_site.browser()
    weights = dict[str, int]()
    for path in SHOWN:
        page = await browser.get(path.format_map(found))
        names = [name for name in FILES.findall(page.text) if not APART.search(name)]
        bodies = [page.content, *[(await browser.get(name)).content for name in names]]
        weights[path] = sum(len(gzip.compress(body)) for body in bodies)
    assert {path: size for path, size in weights.items() if size > HEAVIEST} == {}
    assert weights["/ui/jobs"] > HEAVIEST / 6  # the sizes include styles and scripts


@pytest.mark.parametrize("path", SHOWN)
async def test_page_contains_no_inline_script_or_style(open_site: Site, path: str) -> None:
    found = await filled(open_site)
    answer = await open_site.browser().get(path.format_map(found))
    assert strange(answer.text) == []


async def test_job_chosen_names_are_escaped(open_site: Site) -> None:
    evil = job(
        EVIL,
        group(EVIL, task(EVIL, config={"command": EVIL}), services=[Service(name=EVIL)]),
        meta={EVIL: EVIL},
    )
    for item in (evil, job(EVIL, group(EVIL, task(EVIL, config={"command": "/bin/x"})))):
        await open_site.cluster.register(item)
        await open_site.cluster.work()
        await open_site.cluster.run_all()
    browser = open_site.browser()
    allocation = open_site.cluster.allocations(EVIL)[0]
    name = (
        "%3Cscript%3Ealert%28%221%22%29%3C%2Fscript%3E%3Cimg%20src%3Dx%20onerror%3Dalert%282%29%3E"
    )
    pages = ["/ui/", "/ui/jobs", "/ui/evaluations", f"/ui/allocation/{allocation.id}"]
    pages += [f"/ui/job/{name}{rest}" for rest in ("", "/definition", "/versions", "/evaluations")]
    answers = [await browser.get(path) for path in pages]
    assert {answer.status_code for answer in answers} == {200}
    assert [strange(answer.text) for answer in answers] == [[]] * len(pages)
    assert all("&lt;script&gt;" in answer.text for answer in answers)


async def test_query_text_is_escaped_in_pages(open_site: Site) -> None:
    answer = await open_site.browser().http.get("/ui/jobs", params={"search": f'"{EVIL}'})
    assert answer.status_code == 200, answer.text
    assert strange(answer.text) == []


async def test_a_search_finds_jobs_by_a_part_of_their_name(open_site: Site) -> None:
    for name in ("web.front", "webxfront", "other"):
        await open_site.cluster.register(job(name))
    text = (await open_site.browser().get("/ui/jobs?search=EB.FR")).text
    assert ("web.front" in text, "webxfront" in text, ">other<" in text) == (True, False, False)


@pytest.mark.parametrize("search", ["web.a", "WEB.A", ' "', "`", "\\", "(", "ü", '" or ID != "'])
async def test_search_text_is_literal(open_site: Site, search: str) -> None:
    for name in (f"x{search.strip()}y", "other"):
        await open_site.cluster.register(job(name))
    answer = await open_site.browser().http.get("/ui/jobs", params={"search": search})
    assert [unescape(item) for item in LINKED.findall(answer.text)] == [f"x{search.strip()}y"]


async def test_type_and_state_filter_the_list_and_invalid_ones_are_ignored(
    open_site: Site,
) -> None:
    await open_site.cluster.register(job("one", type="batch"))
    await open_site.cluster.register(job("two"))
    for query, found in (
        ("type=batch", ["one"]),
        ("type=batch&state=failed", []),
        ("type=service&state=pending", ["two"]),
        ('type=x" or "&state=nothing', ["two", "one"]),
    ):
        text = (await open_site.browser().get(f"/ui/jobs?{query}")).text
        assert LINKED.findall(text) == found


async def test_five_thousand_jobs_do_not_enlarge_the_page(open_site: Site) -> None:
    def work(tx: Transaction) -> None:
        for number in range(5000):
            stored = jobs.append_version(tx, job(f"job-{number:04}"))
            job_status.refresh_summary(tx, stored.namespace, stored.id)

    await open_site.cluster.store.write(work)
    browser = open_site.browser()
    answer = await browser.get("/ui/jobs")
    assert len(LINKED.findall(answer.text)) == 25
    weight = sum([len(gzip.compress((await browser.get(item)).content)) for item in LOADED])
    assert weight + len(gzip.compress(answer.content)) < 150_000
    assert LINKED.findall((await browser.get("/ui/jobs?search=B-12&type=service")).text)
    found = LINKED.findall((await browser.get("/ui/jobs?search=JOB-4321")).text)
    assert found == ["job-4321"]


async def test_a_long_list_has_pages(open_site: Site) -> None:
    for number in range(60):
        await open_site.cluster.register(job(f"job-{number:02}"))
    browser = open_site.browser()
    first = (await browser.get("/ui/jobs")).text
    following = re.search(r'rel="next" href="([^"]+)"', first)
    assert following is not None
    second = (await browser.get(following[1].replace("&amp;", "&"))).text
    names = [re.findall(r">(job-\d\d)<", page) for page in (first, second)]
    assert [len(page) for page in names] == [25, 25]
    assert set(names[0]).isdisjoint(names[1])


async def test_waiting_job_is_reported_with_its_reason(open_site: Site) -> None:
    too_large = task(resources=Resources(cpu=20, memory_mb=10**9))
    await open_site.cluster.register(job("huge", group("g", too_large)))
    await open_site.cluster.work()
    text = (await open_site.browser().get("/ui/")).text
    assert "less than 1000000000 MiB of memory left" in text.partition("Blocked")[2]


async def test_settings_are_shown_with_driver_limits(open_site: Site) -> None:
    text = (await open_site.browser().get("/ui/settings")).text
    assert "retention_events" in text
    assert '<th scope="row">raw_exec</th>' in text


HCL = """job "web" {
  # what it is for
  group "g" {
    count = 2
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/x"
      }
    }
  }
}
"""


async def submit(browser: Browser, source: str) -> None:
    planned = (await browser.send("/ui/plan", None, source=source)).text
    index = re.search(r'name="index" value="(\d+)"', planned)
    assert index is not None, planned
    assert (await browser.send("/ui/run", None, source=source, index=index[1])).status_code == 303


async def test_two_versions_are_shown_side_by_side(open_site: Site) -> None:
    browser = open_site.browser()
    for count in (2, 3, 4):
        await submit(browser, HCL.replace("count = 2", f"count = {count}"))
    text = (await browser.get("/ui/job/web/compare?old=0&new=2")).text
    assert "Changes from version 0 to 2" in text
    assert "<td>Count</td><td><code>2</code></td><td><code>4</code></td>" in text
    files = text.partition("<h2>Job files")[2]
    assert "    count = 2</code>" in files
    assert "    count = 4</code>" in files
    assert "count = 3" not in files
    assert 'action="/ui/job/web/compare"' in (await browser.get("/ui/job/web/versions")).text
    for query, status in (("old=2&new=2", 200), ("old=7&new=2", 400), ("old=0&new=7", 404)):
        answer = await browser.get(f"/ui/job/web/compare?{query}")
        assert answer.status_code == status


async def test_a_definition_is_shown_in_colors(open_site: Site) -> None:
    browser = open_site.browser()
    await submit(browser, HCL)
    text = (await browser.get("/ui/job/web/definition")).text
    assert '<span class="hl-comment"># what it is for</span>' in text
    assert '<span class="hl-number">2</span>' in text
    assert strange(text) == []


def written_in(text: str) -> str:
    """Return the text in the editor of a page."""
    match = re.search(
        r'<textarea class="code" id="source" name="source"[^>]*>\n(.*?)</textarea>', text, re.DOTALL
    )
    assert match is not None, text
    return unescape(match[1])


async def register(browser: Browser, *args: str) -> None:
    """Register a job by JSON, without a source."""
    only = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/x", "args": args}}
    body = {"ID": "web", "TaskGroups": [{"Name": "g", "Count": 2, "Tasks": [only]}]}
    assert (await browser.http.post("/v1/jobs", json={"Job": body})).is_success


async def test_job_without_source_is_edited_as_a_job_file(open_site: Site) -> None:
    browser = open_site.browser()
    await register(browser, "a")
    page = (await browser.get("/ui/run?job=web")).text
    assert "has no submitted source" in page
    source = written_in(page)
    assert source.startswith('job "web" {')
    assert "count = 2" in source
    planned = await browser.send("/ui/plan", None, source=source)
    assert "Nothing would change" in planned.text
    await submit(browser, source.replace("count = 2", "count = 3"))
    assert written_in((await browser.get("/ui/run?job=web")).text) == source.replace("2", "3", 1)
    assert "Submitted source" in (await browser.get("/ui/job/web/definition")).text


async def test_job_beyond_hcl_is_edited_as_json(open_site: Site) -> None:
    decomposed = "e\u0301"  # job files hold texts in their composed form
    browser = open_site.browser()
    await register(browser, decomposed)
    page = (await browser.get("/ui/run?job=web")).text
    assert "HCL cannot express every field" in page
    source = written_in(page)
    assert source.startswith("{")
    await submit(browser, source.replace('"Count": 2', '"Count": 3'))
    again = written_in((await browser.get("/ui/run?job=web")).text)
    assert '"Count": 3' in again
    assert decomposed in again


async def test_variable_values_are_stored_with_their_job_file(open_site: Site) -> None:
    source = HCL.replace("count = 2", "count = var.count")
    source = f'variable "count" {{\n  type = number\n}}\nvariable "x" {{}}\n{source}'
    browser = open_site.browser()
    given = {"source": source, "variables": "count = 4\n", "flag.x": "1"}
    planned = (await browser.send("/ui/plan", None, **given)).text
    index = re.search(r'name="index" value="(\d+)"', planned)
    assert index is not None, planned
    assert 'name="flag.x" value="1"' in planned
    await browser.send("/ui/run", None, index=index[1], **given)
    page = (await browser.get("/ui/run?job=web")).text
    assert "count = 4" in page
    assert 'name="flag.x" value="1"' in page


async def test_upcoming_slots_are_shown_and_paused(open_site: Site) -> None:
    clock = Periodic(enabled=True, spec="0 3 * * *", spec_type="cron")
    await open_site.cluster.register(job("clock", type="batch", periodic=clock))
    browser = open_site.browser()
    await open_site.cluster.store.write(
        lambda tx: periodic.advance(tx, "default", "clock", followed_to=NOW, next_slot=NOW + HOUR)
    )
    overview = (await browser.get("/ui/")).text.partition("Next launches")[2]
    assert "in 1 h" in overview.partition("Recently changed")[0]
    assert ">clock<" in overview.partition("Recently changed")[0]
    coming = (await browser.get("/ui/job/clock/launches")).text.partition("Upcoming slots")[2]
    assert coming.partition("Past")[0].count("T03:00:00Z") >= 10
    await browser.send("/ui/job/clock/pause")
    assert "The job is paused" in (await browser.get("/ui/job/clock/launches")).text
    await browser.send("/ui/job/clock/pause", None, resume="1")
    assert "The job is paused" not in (await browser.get("/ui/job/clock/launches")).text


async def test_a_service_is_shown_with_its_health(open_site: Site) -> None:
    await open_site.run()
    (allocation,) = open_site.cluster.allocations()
    registration = Registration(
        id="r",
        service_name="front",
        namespace="default",
        node_id=allocation.node_id,
        datacenter="dc1",
        job_id="web",
        alloc_id=allocation.id,
        address="10.0.0.1",
        port=8080,
    )
    await open_site.cluster.store.write(
        lambda tx: services.replace_registrations(
            tx, allocation.id, [ServiceAddress(registration, ready=None)]
        )
    )
    result = CheckResult(
        id="c",
        mode="healthiness",
        status=CheckStatus.FAILURE,
        output="connection refused",
        group="g",
        service="front",
        check="alive",
    )
    other = msgspec.structs.replace(result, id="d", service="back", output="of another")
    open_site.runner.found = [result, other]
    for page in ("/ui/services", "/ui/job/web"):
        text = (await open_site.browser().get(page)).text
        assert "10.0.0.1:8080" in text
        assert "is-critical" in text
        assert "connection refused" in text
        assert "of another" not in text


async def test_services_and_their_instances_have_pages(
    open_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_site.run()
    (allocation,) = open_site.cluster.allocations()
    registrations = [
        Registration(
            id=f"{name}-{number}",
            service_name=name,
            namespace="default",
            node_id=allocation.node_id,
            datacenter="dc1",
            job_id="web",
            alloc_id=allocation.id,
            address="10.0.0.1",
            port=8000 + number,
        )
        for name, instances in (("a", 5), ("b", 1), ("c", 1))
        for number in range(instances)
    ]
    await open_site.cluster.store.write(
        lambda tx: services.replace_registrations(
            tx, allocation.id, [ServiceAddress(item, ready=None) for item in registrations]
        )
    )
    monkeypatch.setattr(cluster_pages, "_SERVICES", 2)
    monkeypatch.setattr(cluster_pages, "INSTANCES", 3)
    monkeypatch.setattr(cluster_pages, "_ROWS", 4)
    monkeypatch.setattr(job_pages, "INSTANCES", 3)
    browser = open_site.browser()
    text = (await browser.get("/ui/services")).text
    assert re.findall(r'id="service-(\w)"', text) == ["a", "b"]
    assert re.findall(r"10\.0\.0\.1:(\d+)", text) == ["8000", "8001", "8002", "8000"]
    assert "All instances</a>" in text
    text = (await browser.get(next_page(text))).text
    assert re.findall(r'id="service-(\w)"', text) == ["c"]
    text = (await browser.get("/ui/services?name=a&namespace=default")).text
    found = re.findall(r"10\.0\.0\.1:(\d+)", text)
    found += re.findall(r"10\.0\.0\.1:(\d+)", (await browser.get(next_page(text))).text)
    assert found == ["8000", "8001", "8002", "8003", "8004"]
    assert "No instances." in (await browser.get("/ui/services?name=other")).text
    text = (await browser.get("/ui/job/web")).text
    found = re.findall(r"10\.0\.0\.1:(\d+)", text)
    while path := next_page(text):
        text = (await browser.get(path)).text
        found += re.findall(r"10\.0\.0\.1:(\d+)", text)
    assert sorted(found) == sorted(str(item.port) for item in registrations)


def next_page(text: str) -> str:
    """Return the address of the next page; empty if there is none."""
    found = re.search(r'href="([^"#]*)[^"]*">Next page', text)
    return unescape(found[1]) if found else ""


@pytest.mark.parametrize("tab", ["versions", "deployments", "evaluations"])
async def test_history_of_a_job_has_pages(
    open_site: Site, monkeypatch: pytest.MonkeyPatch, tab: str
) -> None:
    monkeypatch.setattr(ui_session, "_ROWS", 2)
    browser = open_site.browser()
    for count in range(1, 6):
        await open_site.cluster.register(
            job("web", group(count=count, update=Update(max_parallel=1)))
        )
        await open_site.cluster.work()
    pattern = {
        "versions": r"<h2>Version (\d)",
        "deployments": r"<h2>Version (\d)",
        "evaluations": r'href="/ui/evaluation/([^"]+)"',
    }[tab]
    path, found = f"/ui/job/web/{tab}", list[str]()
    while path:
        text = (await browser.get(path)).text
        found += re.findall(pattern, text)
        path = next_page(text)
    assert len(found) == len(set(found)) == 5
    if tab != "evaluations":
        assert found == ["4", "3", "2", "1", "0"]


async def test_missing_job_is_reported(open_site: Site) -> None:
    answer = await open_site.browser().get("/ui/job/nothing")
    assert answer.status_code == 404
    assert "job not found" in answer.text


@pytest.mark.parametrize(
    "tab", ["", "/definition", "/versions", "/deployments", "/evaluations", "/launches"]
)
async def test_job_named_like_an_endpoint_has_its_pages(open_site: Site, tab: str) -> None:
    await open_site.run("web")
    browser = open_site.browser()
    for end in ("summary", "allocations", "periodic/slots"):
        path = f"/ui/job/{quote(f'web/{end}', safe='')}{tab}"
        assert (await browser.get(path)).status_code == 404
        await open_site.run(f"web/{end}")
        assert f"<h1>web/{end} " in (await browser.get(path)).text


async def test_job_shows_its_notifications(open_site: Site) -> None:
    meta = {"steward_notify_webhook": "https://hooks.example/x?key=secret"}
    await open_site.cluster.register(job("web", type="batch", meta=meta))
    await open_site.cluster.work()
    (one,) = open_site.cluster.allocations()
    await open_site.cluster.report(one, ClientStatus.FAILED)
    text = (await open_site.browser().get("/ui/job/web")).text
    shown = text.partition('id="notifications"')[2]
    assert "failure: allocation" in shown
    assert "https://hooks.example/x<" in shown


async def test_a_file_that_has_changed_has_another_address(open_site: Site) -> None:
    browser = open_site.browser()
    page = (await browser.get("/ui/")).text
    match = re.search(r'href="(/ui/static/style.css\?v=\w+)"', page)
    assert match is not None
    assert "immutable" in (await browser.get(match[1])).headers["Cache-Control"]
    assert (await browser.get("/ui/static/style.css")).headers["Cache-Control"] == "no-cache"


async def test_job_list_shows_the_last_50_runs_including_stopped_runs(
    open_site: Site,
) -> None:
    parent = job(
        "convert",
        group("g", reschedule_policy=NEVER),
        type="batch",
        parameterized_job=Parameterized(),
    )
    await open_site.cluster.register(parent)
    browser = open_site.browser()
    endings = ["complete"] * 3 + ["failed", "stopped"] + ["complete"] * 47
    for ending in endings:
        answer = await browser.http.post("/v1/job/convert/dispatch", json={})
        child = answer.json()["DispatchedJobID"]
        await open_site.cluster.work()
        (one,) = open_site.cluster.allocations(child)
        if ending == "stopped":
            await browser.http.delete(f"/v1/job/{quote(child, safe='')}")
            await open_site.cluster.work()
        failed = ending == "failed"
        await open_site.cluster.report(
            one, ClientStatus.FAILED if failed else ClientStatus.COMPLETE
        )
        await open_site.cluster.work()
    page = (await browser.get("/ui/jobs")).text
    strip = page.partition('class="strip is-small"')[2].partition("</span>")[0]
    shown = re.findall(r'<i class="is-(\w+)"', strip)
    assert shown == endings[-50:]
    assert {"stopped", "failed", "complete"} == {*shown}


async def test_plan_shows_changes_and_runs_nothing(open_site: Site) -> None:
    source = 'job "new" {\ngroup "g" {\ntask "t" {\ndriver = "raw_exec"\n'
    source += 'config {\ncommand = "/bin/x"\n}\n}\n}\n}\n'
    browser = open_site.browser()
    answer = await browser.send("/ui/plan", None, source=source)
    assert answer.status_code == 200, answer.text
    assert "A new job." in answer.text
    cells = re.findall(r'<td data-label="[^"]*">([^<]*)</td>', answer.text)
    end = cells.index("none here") + 1
    assert cells[end - 4 : end] == ["raw_exec", "isolation", "no", "none here"]
    assert (await browser.get("/ui/job/new")).status_code == 404
    index = re.search(r'name="index" value="(\d+)"', answer.text)
    assert index is not None
    done = await browser.send("/ui/run", None, source=source, index=index[1])
    assert done.headers["Location"] == "/ui/job/new?namespace=default"
    assert (await browser.get("/ui/job/new/definition")).text.count("raw_exec")


async def test_form_does_not_run_a_job_that_changed_since_its_plan(open_site: Site) -> None:
    source = 'job "web" {\ngroup "g" {\ntask "t" {\ndriver = "raw_exec"\n}\n}\n}'
    await open_site.run()
    answer = await open_site.browser().send("/ui/run", None, source=source, index="1")
    assert answer.status_code == 400


async def test_invalid_job_file_is_shown_with_its_error(open_site: Site) -> None:
    answer = await open_site.browser().send("/ui/plan", None, source='job "x" {\n<b>')
    assert answer.status_code == 400
    assert "Failed to parse job" in answer.text
    assert strange(answer.text) == []


async def test_event_stream_sends_only_changed_objects(open_site: Site) -> None:
    port = int(open_site.address.rpartition(":")[2])
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"GET /ui/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        said = await until(stream, b"event: begin")
        await open_site.cluster.register(job("web"))
        said += await until(stream, b'"Key":"web"')
    assert b"TaskGroups" not in said


async def until(stream: trio.SocketStream, wanted: bytes) -> bytes:
    said = b""
    with trio.fail_after(60):
        while wanted not in said and (piece := await stream.receive_some()):
            said += piece
    assert wanted in said
    return said


async def test_cluster_is_shown_with_its_hosts_and_their_reasons(
    site: Site, master: Browser
) -> None:
    away = "the cluster does not answer: it hangs"
    there = msgspec.structs.replace(
        cluster(status="disconnected", status_description=away),
        id="6f1c2a34-0000-4000-8000-000000000000",
    )
    await site.cluster.join(there)
    listed = (await master.get("/ui/nodes")).text
    shown = (await master.get(f"/ui/node/{there.id}")).text
    for text in (listed, shown):
        assert away in text
        assert "partition main of a slurm cluster" in text
        assert "is down: Not responding" in text
    assert "0 running, 0 waiting" in listed
    assert "Memory used" not in shown


async def test_host_of_a_cluster_shows_the_jobs_of_its_tasks(site: Site, master: Browser) -> None:
    there = msgspec.structs.replace(
        cluster(host("c1", 8, 4000), host("c2", 8, 4000)),
        id="6f1c2a34-0000-4000-8000-000000000000",
        node_resources=resources(
            cpu=NodeCPU(cpu_shares=16000, total_cpu_cores=16, reservable_cpu_cores=[]),
            memory=NodeMemory(memory_mb=8000),
        ),
    )
    await site.cluster.join(there)
    await site.run("fold", node_pool="hpc")
    (alloc,) = site.cluster.allocations("fold")
    assert alloc.node_id == there.id
    run = ClusterRun(
        allocation_id=alloc.id,
        task="main",
        number=0,
        pool="hpc",
        status=RunStatus.RUNNING,
        host="c2.example.org",
    )
    page = (await master.get(f"/ui/node/{there.id}")).text
    assert "1 allocation waits for a host" in page
    await site.cluster.store.write(lambda tx: cluster_runs.put(tx, run))
    page = (await master.get(f"/ui/node/{there.id}")).text
    hosts = page.partition('id="hosts"')[2].partition("</section>")[0]
    (empty, used) = hosts.partition("<tbody>")[2].split("</tr>")[:2]
    assert "c1" in empty
    assert "/ui/job/fold" not in empty
    assert "c2" in used
    assert "/ui/job/fold" in used
    assert "for a host" not in hosts


async def test_retained_files_are_listed_and_downloaded(open_site: Site) -> None:
    found = await filled(open_site)
    store, config = open_site.parts.store, open_site.parts.config
    content, path = b"a;b", f"out/{EVIL.replace('/', '-')}.csv"
    digest = hashlib.sha256(content).hexdigest()
    place = trio.Path(payload_dir(str(config.payloads_dir), "default"))
    await place.mkdir(parents=True)
    await (place / digest).write_bytes(content)

    def keep(tx: Transaction) -> None:
        payload_files.put(tx, "default", digest, len(content), is_complete=True, now=NOW)
        kept_files.replace(tx, found["alloc_id"], "main", {path: digest})

    await store.write(keep)
    page = await open_site.browser().get(f"/ui/allocation/{found['alloc_id']}")
    assert strange(page.text) == []
    (link,) = [
        str(attributes["href"])
        for tag, attributes in Elements(page.text).found
        if tag == "a" and "/kept" in str(attributes.get("href"))
    ]
    answer = await open_site.browser().get(link)
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


async def test_escaped_slash_belongs_to_the_id_of_a_job(open_site: Site) -> None:
    for job_id in ("dir", "dir/run", "dir/definition", "dir/stop"):
        await open_site.run(job_id)
    browser = open_site.browser()
    for job_id in ("dir/run", "dir/definition", "dir/stop"):
        page = (await browser.get(f"/ui/job/{quote(job_id, safe='')}")).text
        assert f"<h1>{job_id} " in page
        page = (await browser.get(f"/ui/job/{quote(job_id, safe='')}/versions")).text
        assert f"<h1>{job_id} " in page
    assert "<h1>dir " in (await browser.get("/ui/job/dir/definition")).text


async def test_unescaped_id_is_found_if_no_shorter_one_exists(open_site: Site) -> None:
    await open_site.run("alone/run")
    browser = open_site.browser()
    assert "<h1>alone/run " in (await browser.get("/ui/job/alone/run")).text
    assert (await browser.get("/ui/job/none/run")).status_code == 404


async def test_reloads_of_jobs_with_similar_ids_differ(open_site: Site) -> None:
    for job_id in ("dir", "dir/deployments"):
        await open_site.run(job_id)
    browser = open_site.browser()
    headers = {"If-None-Match": '"older"'}
    pages = [
        (await browser.http.get(target, headers=headers)).text
        for target in ("/ui/job/dir%2Fdeployments", "/ui/job/dir/deployments")
    ]
    assert ["<h1>dir/deployments " in page for page in pages] == [True, False]


async def test_form_of_a_job_with_a_slash_changes_that_job(open_site: Site) -> None:
    for job_id in ("dir", "dir/run"):
        await open_site.run(job_id)
    answer = await open_site.browser().send("/ui/job/dir%2Frun/stop")
    assert answer.headers["Location"].startswith("/ui/job/dir%2Frun")
    stopped = {job_id: open_site.cluster.job(job_id).stop for job_id in ("dir", "dir/run")}
    assert stopped == {"dir": False, "dir/run": True}


async def test_list_of_nodes_tells_unhealthy_drivers(open_site: Site) -> None:
    drivers = {"raw_exec": DriverInfo(), "podman": DriverInfo(healthy=False)}
    await open_site.cluster.join(node("other", drivers=drivers))
    page = (await open_site.browser().get("/ui/nodes")).text
    assert 'raw_exec <span class="quiet">(unhealthy: podman)</span>' in page


async def test_missing_page_is_reported_with_links(open_site: Site) -> None:
    browser = open_site.browser()
    for path, above in (
        ("/ui/nowhere", ""),
        ("/ui/job/none", "Jobs"),
        ("/ui/role/x/y/z", "Access"),
    ):
        answer = await browser.get(path)
        assert answer.status_code in (400, 404), path
        assert answer.headers["Content-Type"].startswith("text/html")
        assert '<a class="button" href="/ui/">Overview</a>' in answer.text
        assert (f">{above}</a>" in answer.text) == bool(above) or not above
    answer = await browser.get("/ui/job/web/stop")  # the URL of a form
    assert (answer.status_code, "there is no page" in answer.text) == (405, True)
    assert (await browser.http.post("/ui/nowhere")).status_code == 404


async def test_failed_page_is_a_page(open_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("daemon.web.ui_session.UiRequest.ask", fail)
    answer = await open_site.browser().get("/ui/jobs")
    assert answer.status_code == 500
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert '<a href="/ui/">Overview</a>' in answer.text


async def test_denied_page_names_the_missing_capability(site: Site, reader: Browser) -> None:
    answer = await reader.get("/ui/settings")
    assert answer.status_code == 403
    assert "Required: read on agent." in answer.text


async def test_empty_list_differs_from_a_list_without_matches(open_site: Site) -> None:
    browser = open_site.browser()
    for path, objects in (
        ("jobs?search=zz", "jobs"),
        ("runs?search=zz", "runs"),
        ("evaluations?status=failed", "evaluations"),
        ("calendars?search=zz", "calendars"),
        ("variables?search=zz", "variables"),
    ):
        name = path.partition("?")[0]
        assert f"No {objects} yet." in (await browser.get(f"/ui/{name}")).text
        filtered = (await browser.get(f"/ui/{path}")).text
        assert f'No {objects} match the filters. <a href="/ui/{name}">Show all</a>' in filtered


async def test_action_on_a_job_with_a_slash_in_its_id_returns_to_its_page(open_site: Site) -> None:
    await open_site.cluster.register(job("wc", type="batch", parameterized_job=Parameterized()))
    browser = open_site.browser()
    child = (await browser.send("/ui/job/wc/dispatch")).headers["location"]
    assert child.startswith("/ui/job/wc%2Fdispatch-")
    page = (await browser.get(child)).text
    back = re.findall(r'name="back" value="([^"]+)"', page)
    assert back
    done = await browser.send(f"{child.partition('?')[0]}/evaluate", back=unescape(back[0]))
    assert done.status_code == 303
    assert (await browser.get(done.headers["location"])).status_code == 200
