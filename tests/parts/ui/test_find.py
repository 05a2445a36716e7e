"""The search finds pages, actions, and the objects that the user may see."""

import re
from html import unescape

import pytest

from daemon.ui.find import MOST
from storage.queries import services
from storage.records.service import Registration, ServiceAddress
from tests.parts.ui.conftest import NODE, READER, Browser, Site
from tests.parts.ui.test_flows import begin
from tests.parts.ui.test_pages import EVIL, filled, strange
from tests.samples import job

HIT = re.compile(r'<li><a href="([^"]*)"><span>([^<]*)</span>')


async def hits(browser: Browser, text: str) -> dict[str, str]:
    """Return the results by title."""
    answer = await browser.http.get("/ui/find", params={"q": text})
    assert answer.status_code == 200, answer.text
    return {unescape(title): unescape(url) for url, title in HIT.findall(answer.text)}


async def test_objects_of_each_kind_are_found_by_a_part_of_the_name(open_site: Site) -> None:
    found = await filled(open_site, "webshop")
    await begin(open_site)
    browser = open_site.browser()
    assert (await hits(browser, "BSH"))["webshop"] == "/ui/job/webshop"
    allocation = (await hits(browser, "webshop."))["webshop.web[0]"]
    assert allocation == f"/ui/allocation/{found['alloc_id']}"
    assert (await hits(browser, "ap"))["app"] == "/ui/variable/app?namespace=default"
    assert (await hits(browser, "et"))["Run 1 of etl"] == "/ui/job/etl/run?number=1"
    assert (await hits(browser, "sett"))["Settings"] == "/ui/settings"
    assert f"/ui/node/{NODE}" in (await hits(browser, "node")).values()


async def test_identifier_is_found_by_its_prefix(open_site: Site) -> None:
    found = await filled(open_site)
    browser = open_site.browser()
    for name, page in (("alloc_id", "allocation"), ("eval_id", "evaluation")):
        known = await hits(browser, found[name][:8].upper())
        assert known[found[name]] == f"/ui/{page}/{found[name]}"


async def test_action_result_links_to_its_confirmation(open_site: Site) -> None:
    await open_site.run()
    browser = open_site.browser()
    url = (await hits(browser, "Stop we"))["Stop web"]
    assert url == "/ui/job/web?act=stop"
    page = (await browser.get(url)).text
    opened = re.findall(r'<details class="act[^"]*" open>\s*<summary[^>]*>([^<]*)', page)
    assert opened == ["Stop…"]
    assert not open_site.cluster.job().stop
    assert (await hits(browser, "change web"))["Change web"] == "/ui/run?job=web"


async def test_confirmation_of_a_revert_is_not_opened(open_site: Site) -> None:
    await open_site.run()
    assert (await hits(open_site.browser(), "revert web"))["Revert web"] == "/ui/job/web/versions"


async def test_further_variables_have_no_link(
    open_site: Site,
) -> None:
    browser = open_site.browser()
    for number in range(MOST + 1):
        fields = {"path": f"app/key-{number}", "name.0": "a", "value.0": "b"}
        await browser.send("/ui/variables", None, **fields)
    found = await hits(browser, "key-")
    assert len([hit for hit in found if hit.startswith("app/key")]) == MOST
    assert "More variables" not in found


async def test_only_visible_objects_are_found(site: Site) -> None:
    await site.cluster.register(job("veiled", namespace="other"))
    await site.cluster.register(job("shown"))
    browser = site.browser()
    await browser.sign_in(await site.token(READER))
    assert "veiled" not in await hits(browser, "veil")
    assert "shown" in await hits(browser, "sho")
    answer = await browser.get("/ui/find?q=stop%20shown")
    assert "needs submit-job" in answer.text
    stranger = site.browser()
    assert "shown" not in await hits(stranger, "sho")


async def test_results_of_each_kind_are_limited_and_the_remaining_ones_counted(
    open_site: Site,
) -> None:
    for number in range(MOST + 3):
        await open_site.cluster.register(job(f"many-{number:02}"))
    found = await hits(open_site.browser(), "many")
    assert len([hit for hit in found if hit.startswith("many")]) == MOST
    assert found["More jobs"] == "/ui/jobs?search=many"


async def test_services_are_found(open_site: Site) -> None:
    found = await filled(open_site)
    await open_site.cluster.store.write(
        lambda tx: services.replace_registrations(
            tx,
            found["alloc_id"],
            [ServiceAddress(registration(found["alloc_id"], "front-door"), ready=None)],
        )
    )
    known = await hits(open_site.browser(), "door")
    assert known["front-door"] == "/ui/services?namespace=default&name=front-door"


def registration(alloc_id: str, name: str) -> Registration:
    return Registration(
        id=f"id-{name}",
        service_name=name,
        namespace="default",
        node_id=NODE,
        datacenter="dc1",
        job_id="web",
        alloc_id=alloc_id,
        address="127.0.0.1",
        port=80,
    )


@pytest.mark.parametrize("text", [EVIL, '"', "stop ", "%", "\\", "a" * 200, "0" * 36])
async def test_any_text_can_be_searched_for(open_site: Site, text: str) -> None:
    await open_site.run()
    answer = await open_site.browser().http.get("/ui/find", params={"q": text})
    assert answer.status_code == 200
    assert strange(answer.text) == []


async def test_a_text_that_is_too_long_is_refused(open_site: Site) -> None:
    answer = await open_site.browser().http.get("/ui/find", params={"q": "a" * 201})
    assert (answer.status_code, "at most 200" in answer.text) == (400, True)


async def test_all_keys_are_listed(open_site: Site) -> None:
    text = (await open_site.browser().get("/ui/keys")).text
    assert text.count("<kbd>") >= 14
