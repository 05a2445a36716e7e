"""The documentation is complete: every setting, every route and every dependency."""

import re
import tomllib
from pathlib import Path

import pytest

from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.config.settings import FIELDS
from daemon.config.stored_defaults import KEPT
from daemon.jobspec.steward_meta.check import EXTENSIONS
from storage.schema import schema_text

ROOT = Path(__file__).parent.parent
PARTS = ("bench", "daemon", "packaging", "storage", "tests")
PYTHON_FILE = re.compile(r"(?<![\w/.-])([\w/]+\.py)\b(?!\.)")
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_documented(name: str) -> None:
    assert f"| `{name}` |" in (DOCS / "configuration.md").read_text()


def test_kept_defaults_are_documented() -> None:
    page = " ".join((DOCS / "security.md").read_text().split())
    listed = ", ".join(f"`{name}`" for name in KEPT)
    assert f"contains the defaults that an upgrade preserves ({listed})." in page
    migration = (ROOT / "storage/migrations/0017_kept_defaults.sql").read_text()
    stored = re.findall(r"^    \('(\w+)'", migration, re.MULTILINE)
    assert sorted([*stored, "podman_root"]) == sorted(KEPT)


def test_retention_of_every_table_is_documented() -> None:
    tables = set(re.findall(r"^CREATE TABLE (\w+)", schema_text(), re.MULTILINE))
    text = (DOCS / "configuration.md").read_text().partition("| Table |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in text.splitlines()[2:]))
    assert sorted(named) == sorted(tables)


@pytest.mark.parametrize("name", [extension.name for extension in EXTENSIONS])
def test_every_extension_key_is_documented(name: str) -> None:
    assert f"| `{name}` |" in (DOCS / "extensions.md").read_text()


@pytest.mark.parametrize("path", sorted({route.path for route in (*ROUTES, *ENDPOINTS)}))
def test_every_route_is_documented(path: str) -> None:
    assert f"`{path}`" in (DOCS / "api.md").read_text()


@pytest.mark.parametrize("page", ["security.md", "drivers.md", "security-review.md"])
def test_every_attack_and_fault_names_tests_that_exist(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / page).read_text())
    assert named
    missing = {
        f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()
    }
    assert missing == set()


def test_every_row_of_the_security_review_names_a_test() -> None:
    text = (DOCS / "security-review.md").read_text()
    chapters = text.partition("## Level 2")[2].partition("## Requirements that do not apply")[0]
    rows = [line for line in chapters.splitlines() if re.match(r"\| \d", line)]
    assert rows
    assert [row for row in rows if "::test_" not in row.split("|")[4]] == []


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^a-z-]", dependency)[0] for dependency in project["dependencies"]}
    described = (DOCS / "dependencies.md").read_text()
    assert {name for name in names if name not in described} == set()


@pytest.mark.parametrize("line", (ROOT / "tests/wire/decided.txt").read_text().splitlines())
def test_every_deliberate_difference_has_its_heading(line: str) -> None:
    headings = re.findall("^###? (.+)$", (DOCS / "compatibility.md").read_text(), re.MULTILINE)
    assert line.startswith("#") or not line or line.split(maxsplit=1)[1] in headings


def test_no_page_contains_merge_conflict_markers() -> None:
    pages = [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]
    marked = [
        page for page in pages if re.search(r"^(<{7} |>{7} )", page.read_text(), re.MULTILINE)
    ]
    assert marked == []


def test_every_named_python_file_exists() -> None:
    """Pages, docstrings and comments name modules, which a rename must not leave behind."""
    every = {str(path.relative_to(ROOT)) for part in PARTS for path in (ROOT / part).rglob("*.py")}
    names = {path.rpartition("/")[2] for path in every}
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "schema.sql"]
    modules = [path for part in ("daemon", "storage") for path in (ROOT / part).rglob("*.py")]
    gone = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*pages, *modules]
        if path.name != "CHANGELOG.md"
        for name in PYTHON_FILE.findall(path.read_text())
        if name not in names and not any(f"/{item}".endswith(f"/{name}") for item in every)
    ]
    assert gone == []
