"""The usage section of many tasks."""

import threading
from typing import Any, cast

import pytest

from daemon.ui import charts, usage
from daemon.web.parameters import QueryParameters
from daemon.web.ui_session import UiRequest
from tests.unit.ui.test_charts import history


class Visit:
    """A UI request that gets the same document from the API."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.query, self.found = QueryParameters(""), found

    async def get(self, path: str, **query: object) -> dict[str, Any]:
        return self.found


async def test_section_has_the_reason_of_a_missing_network() -> None:
    found = history(CPUPercent=[1.0]) | {"Enabled": True, "NoNetwork": "it has none"}
    visit = cast(UiRequest, Visit(found))
    section = await usage.usage_section(visit, "/v1/job/web", "/ui/job/web")
    assert section.no_network == "it has none"


async def test_charts_are_made_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    makers: set[int] = set()
    made = charts.charts_of

    def noted(found: dict[str, Any], task: str = "") -> list[charts.Chart]:
        makers.add(threading.get_ident())
        return made(found, task)

    monkeypatch.setattr(charts, "charts_of", noted)
    found = {"Enabled": True, **history(CPUPercent=[10, 20])}
    found["Series"] += [{**found["Series"][0], "Task": name} for name in ("main", "side")]
    section = await usage.usage_section(cast(UiRequest, Visit(found)), "/v1/allocation/a", "/ui")
    assert [part.task for part in section.parts] == ["", "main", "side"]
    assert threading.get_ident() not in makers
