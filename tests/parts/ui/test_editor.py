"""The check of a job file: problems with their lines, bounded, within the rights of the user."""

from typing import Any

import pytest

from daemon.ui.plan_and_run import MOST_PROBLEMS
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
        ('group "g" {\n', 'group "g" {\n    count = -1\n', 3, "ount"),  # of the validation
        ('"raw_exec"', '""', 4, "river"),
    ],
)
async def test_a_problem_has_its_line(
    open_site: Site, old: str, new: str, line: int, words: str
) -> None:
    found = await check(open_site.browser(), FILE.replace(old, new, 1))
    assert line in [one["Line"] for one in found["Problems"]], found
    assert words in str(found["Problems"])


async def test_values_of_variables_count(open_site: Site) -> None:
    source = 'variable "name" {}\n' + FILE.replace('"raw_exec"', "var.name")
    browser = open_site.browser()
    assert (await check(browser, source))["Problems"]
    assert not (await check(browser, source, **{"flag.name": "raw_exec"}))["Problems"]


async def test_only_the_first_problems_are_sent(open_site: Site) -> None:
    groups = "".join(f'group "g{at}" {{\n count = -1\n }}\n' for at in range(MOST_PROBLEMS + 10))
    found = await check(open_site.browser(), f'job "x" {{\n{groups}}}\n')
    assert len(found["Problems"]) == MOST_PROBLEMS


@pytest.mark.parametrize("source", ["", "{", "{}", '{"Job": {"ID": "x"}}', "<b>", "\x00", "job"])
async def test_anything_can_be_checked(open_site: Site, source: str) -> None:
    found = await check(open_site.browser(), source)
    assert found["Problems"]


async def test_who_may_not_parse_learns_that(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token('namespace "default" { capabilities = ["list-jobs"] }'))
    found = await check(browser, FILE)
    assert found == {"Problems": [], "Note": "Your token does not allow the check of job files."}
    await browser.sign_in(await site.token(READER))
    assert (await check(browser, FILE.replace("driver", "drivr")))["Note"] == ""
