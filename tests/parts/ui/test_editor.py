"""The check of a job file: problems with their lines, limited, with the permissions of the user."""

import threading
from typing import Any

import pytest

from daemon.ui import plan_and_run
from daemon.ui.plan_and_run import MOST_PROBLEMS
from daemon.web.ui_session import UiRequest
from storage.errors import StorageBusy
from tests.parts.ui.conftest import READER, Browser, Site

FILE = """job "x" {
  group "g" {
    task "t" {
      driver = "raw_exec"

      config {
        command = "/bin/true"
      }
    }
  }
}
"""


async def check(browser: Browser, source: str, **fields: str) -> Any:
    answer = await browser.send("/ui/check", None, source=source, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_valid_file_has_no_problems(open_site: Site) -> None:
    assert await check(open_site.browser(), FILE) == {"Problems": [], "Note": ""}


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("driver", "drivr", 4, 'Did you mean "driver"?'),
        ('  group "g" {\n', '  group "g" {\n    count = "x"\n', 3, "number"),
        ("}\n}\n", "}\n", 1, "nclosed"),
        ('"raw_exec"', "var.none", 4, "none"),
        ('group "g" {\n', 'group "g" {\n    count = -1\n', 3, "ount"),  # an error of the validation
        ('"raw_exec"', '""', 4, "river"),
    ],
)
async def test_a_problem_has_its_line(
    open_site: Site, old: str, new: str, line: int, words: str
) -> None:
    found = await check(open_site.browser(), FILE.replace(old, new, 1))
    assert line in [problem["Line"] for problem in found["Problems"]], found
    assert words in str(found["Problems"])


async def test_values_of_variables_are_used(open_site: Site) -> None:
    source = 'variable "name" {}\n' + FILE.replace('"raw_exec"', "var.name")
    browser = open_site.browser()
    assert (await check(browser, source))["Problems"]
    assert not (await check(browser, source, **{"flag.name": "raw_exec"}))["Problems"]


async def test_only_the_first_problems_are_sent(open_site: Site) -> None:
    groups = "".join(f'group "g{at}" {{\n count = -1\n }}\n' for at in range(MOST_PROBLEMS + 10))
    found = await check(open_site.browser(), f'job "x" {{\n{groups}}}\n')
    assert len(found["Problems"]) == MOST_PROBLEMS


@pytest.mark.parametrize("source", ["", "{", "{}", '{"Job": {"ID": "x"}}', "<b>", "\x00", "job"])
async def test_any_text_can_be_checked(open_site: Site, source: str) -> None:
    found = await check(open_site.browser(), source)
    assert found["Problems"]


async def test_refused_parse_names_the_missing_capability(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token('namespace "default" { capabilities = ["list-jobs"] }'))
    found = await check(browser, FILE)
    assert found == {"Problems": [], "Note": "Your token does not permit checking job files."}
    await browser.sign_in(await site.token(READER))
    assert (await check(browser, FILE.replace("driver", "drivr")))["Note"] == ""


async def test_problem_lines_are_searched_in_a_thread_only_for_sent_problems(
    open_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, calls = plan_and_run._line_of_names, []

    def noted(*given: Any) -> int:
        calls.append(threading.current_thread() is threading.main_thread())
        return known(*given)

    monkeypatch.setattr(plan_and_run, "_line_of_names", noted)
    groups = "".join(f'group "g{at}" {{\n count = -1\n }}\n' for at in range(MOST_PROBLEMS + 10))
    await check(open_site.browser(), f'job "x" {{\n{groups}}}\n')
    assert calls == [False] * MOST_PROBLEMS


def test_problem_with_many_names_is_searched_for_a_few() -> None:
    class Lines(list[str]):
        reads = 0

        def __getitem__(self, at: Any) -> Any:
            self.reads += 1
            return super().__getitem__(at)

    lines = Lines(["", *['"b"'] * 10])
    plan_and_run._line_of_names(lines, 'group "a" ' * 100)
    assert lines.reads <= 2 * len(lines) * plan_and_run._MOST_NAMES
    (problem,) = plan_and_run._of_validation("", ["x" * 10_000])
    assert len(str(problem["Text"])) == 2000


@pytest.mark.parametrize(("length", "is_apart"), [(10, False), (100_000, True)])
async def test_a_long_file_in_json_is_decoded_in_a_thread(
    open_site: Site, monkeypatch: pytest.MonkeyPatch, length: int, is_apart: bool
) -> None:
    known, calls = plan_and_run._from_json, []

    def noted(source: str) -> Any:
        calls.append(threading.current_thread() is not threading.main_thread())
        return known(source)

    monkeypatch.setattr(plan_and_run, "_from_json", noted)
    source = f'{{"ID": "x", "Meta": {{"a": "{"b" * length}"}}}}'
    await check(open_site.browser(), source)
    await open_site.browser().send("/ui/plan", None, source=source)
    assert calls == [is_apart] * 2


async def test_an_error_of_the_daemon_is_no_problem_of_the_file(
    open_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise StorageBusy("busy")

    browser = open_site.browser()
    proof = await browser.proof()
    monkeypatch.setattr(UiRequest, "post", fails)
    answer = await browser.send("/ui/check", None, source=FILE, proof=proof)
    assert answer.status_code == 503


async def test_plan_stores_the_draft_of_its_job(open_site: Site) -> None:
    await open_site.run()
    browser = open_site.browser()
    fields = {"job": "web", "namespace": "ops", "source": FILE}
    for source in (FILE, "no job file"):
        page = (await browser.send("/ui/plan", None, **{**fields, "source": source})).text
        assert 'data-draft="web ops"' in page
        assert '<input type="hidden" name="job" value="web">' in page
        assert '<input type="hidden" name="namespace" value="ops">' in page
    page = (await browser.get("/ui/run?job=web")).text
    assert 'data-draft="web default"' in page
    assert '<input type="hidden" name="job" value="web">' in page
    assert 'data-draft="new"' in (await browser.send("/ui/plan", None, source=FILE)).text


async def test_drafts_belong_to_the_user(site: Site, open_site: Site) -> None:
    browser, secret = site.browser(), await site.token(READER)
    assert 'data-user=""' in (await browser.get("/ui/sign-in")).text
    await browser.sign_in(secret)
    accessor = site.parts.tokens.resolve(secret).token.accessor
    assert f'data-user="{accessor}"' in (await browser.get("/ui/run")).text
    assert 'data-user=""' in (await open_site.browser().get("/ui/run")).text
