"""Move the fragments of docs/news into the section of a version in CHANGELOG.md.

    changelog.py VERSION

If the section exists, the fragments are added to it. Otherwise a new section is added at the top.
The script deletes the fragments.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"feature": "Added", "change": "Changed", "fix": "Fixed", "removal": "Removed"}


def entry(fragment: Path) -> str:
    """Return a fragment as a list item."""
    first, *rest = fragment.read_text().strip().splitlines()
    return "\n".join([f"- {first}", *(f"  {line}" for line in rest)])


def collect(news: Path) -> dict[str, list[str]]:
    """Return the items of each heading. Raises `ValueError` for a fragment of an unknown kind."""
    items_by_heading: dict[str, list[str]] = {heading: [] for heading in KINDS.values()}
    for fragment in sorted(
        news.glob("[0-9]*.md"), key=lambda path: (int(path.name.partition(".")[0]), path.name)
    ):
        kind = fragment.name.split(".")[1]
        if kind not in KINDS:
            raise ValueError(
                f"{fragment.name}: unknown kind {kind!r}: use one of {', '.join(KINDS)}"
            )
        items_by_heading[KINDS[kind]].append(entry(fragment))
    return {heading: items for heading, items in items_by_heading.items() if items}


def merge(changelog: str, version: str, items_by_heading: dict[str, list[str]]) -> str:
    """Return the changelog with the items in the section of a version."""
    title = f"## {version}\n"
    head, *sections = _split(changelog, "## ")
    if not any(section.startswith(title) for section in sections):
        sections.insert(0, f"{title}\n")
    merged = [
        _completed(section, items_by_heading) if section.startswith(title) else section
        for section in sections
    ]
    return "".join([head, *merged]).rstrip() + "\n"


def _completed(section: str, items_by_heading: dict[str, list[str]]) -> str:
    lead, *parts = _split(section, "### ")
    for heading, items in items_by_heading.items():
        name, text = f"### {heading}\n", "\n".join(items)
        position = next((n for n, part in enumerate(parts) if part.startswith(name)), None)
        if position is None:
            parts.append(f"{name}\n{text}\n\n")
        else:
            parts[position] = f"{parts[position].rstrip()}\n{text}\n\n"
    return "".join([f"{lead.rstrip()}\n\n", *(f"{part.rstrip()}\n\n" for part in parts)])


def _split(text: str, mark: str) -> list[str]:
    return re.split(rf"^(?={mark})", text, flags=re.MULTILINE)


def main(version: str) -> None:
    """Rewrite CHANGELOG.md and remove the fragments."""
    news, page = ROOT / "docs/news", ROOT / "CHANGELOG.md"
    items_by_heading = collect(news)
    page.write_text(merge(page.read_text(), version, items_by_heading))
    for fragment in news.glob("[0-9]*.md"):
        fragment.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
