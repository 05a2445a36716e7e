"""The changelog: fragments of news become items in the section of a version."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def changelog() -> ModuleType:
    path = ROOT / "packaging/lib/changelog.py"
    spec = importlib.util.spec_from_file_location("changelog", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fragments_are_grouped_by_kind_in_the_order_of_their_issues(
    changelog: ModuleType, tmp_path: Path
) -> None:
    for name, text in {
        "10.fix.md": "Ten.\n",
        "9.fix.b.md": "Nine,\nin two lines.\n",
        "9.feature.md": "New.\n",
        "README.md": "No fragment.\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert changelog.collect(tmp_path) == {
        "Added": ["- New."],
        "Fixed": ["- Nine,\n  in two lines.", "- Ten."],
    }


def test_an_unknown_kind_is_refused(changelog: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "9.news.md").write_text("x")
    with pytest.raises(ValueError, match=r"9\.news\.md: unknown kind 'news': use one of feature,"):
        changelog.collect(tmp_path)


def test_new_version_is_above_older_versions(changelog: ModuleType) -> None:
    page = "# Changelog\n\nIntroduction.\n\n## 0.1.0\n\n### Added\n\n- Old.\n"
    assert changelog.merge(page, "0.2.0", {"Fixed": ["- New."]}) == (
        "# Changelog\n\nIntroduction.\n\n## 0.2.0\n\n### Fixed\n\n- New.\n\n"
        "## 0.1.0\n\n### Added\n\n- Old.\n"
    )


def test_the_section_of_a_version_is_completed(changelog: ModuleType) -> None:
    page = "# Changelog\n\n## 0.2.0\n\n### Fixed\n\n- One.\n\n### Removed\n\n- Two.\n\n## 0.1.0\n\n- Old.\n"
    found = {"Fixed": ["- Three."], "Added": ["- Four."]}
    assert changelog.merge(page, "0.2.0", found) == (
        "# Changelog\n\n## 0.2.0\n\n### Fixed\n\n- One.\n- Three.\n\n### Removed\n\n- Two.\n\n"
        "### Added\n\n- Four.\n\n## 0.1.0\n\n- Old.\n"
    )


def test_each_fragment_of_this_tree_can_be_collected(changelog: ModuleType) -> None:
    fragments = [*(ROOT / "docs/news").glob("[0-9]*.md")]
    found = changelog.collect(ROOT / "docs/news")
    assert sum(len(items) for items in found.values()) == len(fragments)
