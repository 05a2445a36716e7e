"""Times on pages: rounded as text, exact in the title and for scripts."""

import pytest

from daemon.ui.render import _environment

SECOND = 10**9
AT = 1_700_000_000 * SECOND  # 2023-11-14 22:13:20 UTC


@pytest.mark.parametrize(
    ("nanos", "title", "machine"),
    [
        (AT, "2023-11-14 22:13:20 UTC", "2023-11-14T22:13:20Z"),
        (AT + 45_999_999, "2023-11-14 22:13:20.045 UTC", "2023-11-14T22:13:20.045Z"),
        (AT + 999_999, "2023-11-14 22:13:20 UTC", "2023-11-14T22:13:20Z"),
    ],
)
def test_title_of_a_time_has_its_milliseconds_and_zone(
    nanos: int, title: str, machine: str
) -> None:
    template = '{% import "parts.html" as parts with context %}{{ parts.when(at) }}'
    text = _environment().from_string(template).render(at=nanos, now=AT + 90 * SECOND)
    shown = "1 min 30 s ago" if nanos == AT else "1 min 29 s ago"
    assert text == f'<time datetime="{machine}" title="{title}">{shown}</time>'


def test_text_of_a_date_has_no_fraction() -> None:
    template = '{% import "parts.html" as parts with context %}{{ parts.date(at) }}'
    text = _environment().from_string(template).render(at=AT + SECOND // 2, now=AT)
    assert text.endswith('title="2023-11-14 22:13:20.500 UTC">2023-11-14 22:13:20 UTC</time>')
