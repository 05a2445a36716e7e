"""Orders and pages of tables, and the density of pages."""

import re

from tests.parts.ui.conftest import Site
from tests.parts.ui.test_pages import LINKED
from tests.samples import group, job

SHORT = re.compile(r'<a class="id" href="/ui/allocation/[^"]*">(\w+)</a>')


async def test_jobs_are_listed_by_name_page_by_page(open_site: Site) -> None:
    for number in (*range(30, 60), *range(30)):
        await open_site.cluster.register(job(f"job-{number:02}"))
    browser = open_site.browser()
    names = []
    target = "/ui/jobs?order=name"
    while target:
        page = (await browser.get(target)).text
        names += LINKED.findall(page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        target = following[1].replace("&amp;", "&") if following else ""
    assert names == [f"job-{number:02}" for number in range(60)]
    page = (await browser.get("/ui/jobs?order=name,+from+the+end")).text
    assert LINKED.findall(page)[0] == "job-59"
    page = (await browser.get("/ui/jobs?order=oldest+change")).text
    assert LINKED.findall(page)[0] == "job-30"


async def test_the_next_page_has_the_same_filter(open_site: Site) -> None:
    for number in range(26):
        await open_site.cluster.register(job(f"job-{number:02}"))
    page = (await open_site.browser().get("/ui/jobs?state=pending&search=job")).text
    following = re.search(r'rel="next" href="([^"]+)"', page)
    assert following is not None
    assert "state=pending" in following[1]
    assert "search=job" in following[1]


def groups(page: str) -> list[str]:
    return re.findall(r'data-label="Group">(\w)</td>', page.partition('id="allocations"')[2])


async def test_column_header_sorts_the_allocations_of_a_job(open_site: Site) -> None:
    await open_site.run("web", group("b", count=2), group("a"))
    browser = open_site.browser()
    page = (await browser.get("/ui/job/web")).text
    link = re.search(r'href="([^"]*sort-allocations=group[^"]*)"', page)
    assert link is not None
    page = (await browser.get(link[1].replace("&amp;", "&"))).text
    assert groups(page) == ["a", "b", "b"]
    assert 'aria-sort="ascending"' in page
    page = (await browser.get("/ui/job/web?sort-allocations=-group")).text
    assert groups(page) == ["b", "b", "a"]


async def test_older_allocations_are_on_further_pages(open_site: Site) -> None:
    await open_site.run("web", group("web", count=230))
    browser = open_site.browser()
    first = (await browser.get("/ui/job/web")).text
    following = re.search(r'rel="next" href="([^"]+)"', first)
    assert following is not None
    second = (await browser.get(following[1].replace("&amp;", "&"))).text
    names = [SHORT.findall(page) for page in (first, second)]
    assert [len(page) for page in names] == [200, 30]
    assert len({*names[0], *names[1]}) == 230


async def test_a_page_has_25_rows_and_a_compact_page_50(open_site: Site) -> None:
    for number in range(51):
        await open_site.cluster.register(job(f"job-{number:02}"))
    browser = open_site.browser()
    assert len(LINKED.findall((await browser.get("/ui/jobs")).text)) == 25
    await browser.send("/ui/density", None, density="compact")
    assert len(LINKED.findall((await browser.get("/ui/jobs")).text)) == 50


async def test_compact_lines_are_chosen_for_a_browser(open_site: Site) -> None:
    browser = open_site.browser()
    assert 'class="is-compact"' not in (await browser.get("/ui/jobs")).text
    answer = await browser.send("/ui/density", None, density="compact", back="/ui/jobs?order=name")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/jobs?order=name")
    assert 'class="is-compact"' in (await browser.get("/ui/jobs")).text
    await browser.send("/ui/density", None, density="normal")
    assert 'class="is-compact"' not in (await browser.get("/ui/jobs")).text
