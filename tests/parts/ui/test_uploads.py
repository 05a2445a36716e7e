"""Input files of a dispatch, uploaded by a page in pieces."""

import hashlib
from base64 import b64encode

from storage.records.job import Parameterized
from storage.records.task import Artifact
from tests.parts.ui.conftest import READER, Site
from tests.samples import group, job, task

CONTENT = bytes(range(256)) * 8
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PLACE = f"/ui/payload/{DIGEST}?namespace=default"


async def test_chunks_become_a_file_and_an_interrupted_upload_continues(open_site: Site) -> None:
    browser = open_site.browser()
    assert (await browser.get(PLACE)).json()["Received"] == 0
    size = f"{PLACE}&size={len(CONTENT)}"
    first = await browser.send(f"{size}&offset=0", piece=b64encode(CONTENT[:1000]).decode())
    assert first.json()["Received"] == 1000
    assert (await browser.get(PLACE)).json()["Received"] == 1000
    again = await browser.send(f"{size}&offset=0", piece=b64encode(CONTENT[:1000]).decode())
    assert again.status_code == 409
    last = await browser.send(f"{size}&offset=1000", piece=b64encode(CONTENT[1000:]).decode())
    assert last.json()["IsComplete"]


async def test_invalid_chunks_are_refused_with_a_reason(open_site: Site) -> None:
    browser = open_site.browser()
    wrong = await browser.send(f"{PLACE}&size=9&offset=0", piece="%%")
    assert (wrong.status_code, "piece is not base64" in wrong.text) == (400, True)
    wrong = await browser.send(f"{PLACE}&offset=0", piece="")
    assert (wrong.status_code, "size is missing" in wrong.text) == (400, True)
    wrong = await browser.send("/ui/payload/nothing?size=1&offset=0", piece="YQ==")
    assert (wrong.status_code, "is not a SHA-256" in wrong.text) == (400, True)
    foreign = await browser.send(
        f"{PLACE}&size=1&offset=0", {"Origin": "http://evil"}, piece="YQ=="
    )
    assert foreign.status_code == 403


async def test_upload_needs_the_capability(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token(READER))
    answer = await browser.send(f"{PLACE}&size=1&offset=0", piece="YQ==")
    assert answer.status_code == 403


async def test_dispatch_form_has_a_field_for_each_input_file(open_site: Site) -> None:
    artifacts = [Artifact(getter_source="payload://data.csv"), Artifact(getter_source="http://x/y")]
    await open_site.cluster.register(
        job(
            "wc",
            group("main", task("main", artifacts=artifacts)),
            type="batch",
            parameterized_job=Parameterized(),
        )
    )
    browser = open_site.browser()
    page = (await browser.get("/ui/job/wc/launches")).text
    assert page.count('name="file.') == 1
    assert 'data-digest="file.data.csv"' in page
    answer = await browser.send("/ui/job/wc/dispatch", **{"file.data.csv": DIGEST})
    assert (answer.status_code, DIGEST in answer.text) == (400, True)  # the file was not uploaded


async def test_page_of_launches_lists_as_many_runs_as_other_lists(open_site: Site) -> None:
    await open_site.cluster.register(job("wc", type="batch", parameterized_job=Parameterized()))
    browser = open_site.browser()
    for _ in range(26):
        await browser.send("/ui/job/wc/dispatch")
    link = 'href="/ui/job/wc%2Fdispatch-'
    page = (await browser.get("/ui/job/wc/launches")).text
    assert ("The newest 25 runs." in page, page.count(link)) == (True, 25)
    everything = (await browser.get("/ui/job/wc/launches?more=1")).text
    assert ("of them." in everything, everything.count(link)) == (False, 26)
