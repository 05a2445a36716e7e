"""The API of calendars: capabilities, check-and-set, days, and errors of clients."""

from typing import Any
from urllib.parse import urlencode

import pytest

from daemon.api import calendars
from daemon.api.routes import WRITE_CALENDAR
from daemon.web.reply import HandlerReply
from storage.errors import Malformed, NotFound
from storage.records.calendar import CalendarDays
from storage.store import Store
from tests.parts.api.requests import caller, request

WRITER = 'namespace "default" { capabilities = ["read-job", "write-calendar"] }'
BODY = {"Weekdays": ["mon"], "Holidays": {"2026-12-28": "a holiday"}}


def asked(store: Store, body: object = None, **query: str) -> Any:
    return request(
        store, WRITE_CALENDAR, caller(WRITER), body=body, query=urlencode(query), name="own"
    )


async def put(store: Store, body: object = BODY, **query: str) -> HandlerReply:
    return await calendars.write(asked(store, body, **query))


def days(store: Store, **query: str) -> CalendarDays:
    found: Any = store.read(lambda db: calendars.days(asked(store, **query), db).body)
    assert isinstance(found, CalendarDays)
    return found


async def test_a_calendar_is_stored_and_its_days_are_shown(store: Store) -> None:
    assert (await put(store)).status == 200
    found = days(store, **{"from": "2026-12-21", "to": "2026-12-28"})
    assert [day.date for day in found.days if day.is_open] == ["2026-12-21"]
    assert found.days[-1].reason == "a holiday"
    assert found.days[0].spans == [["2026-12-21T00:00:00Z", "2026-12-22T00:00:00Z"]]
    assert (found.is_open, found.reason) == (False, "Saturday")
    assert found.next_opening == "2026-11-23T00:00:00Z"


async def test_calendar_without_an_opening_has_the_end_of_the_search(store: Store) -> None:
    await put(store, {"Blackouts": [{"Begin": "2020-01-01", "End": "2100-01-01"}]})
    found = days(store)
    assert (found.is_open, found.next_opening) == (False, "")
    assert found.searched_until == "2031-11-25T01:40:00Z"  # 5 * 366 days later


async def test_a_concurrent_change_has_status_409(store: Store) -> None:
    await put(store, cas="0")
    answer = await put(store, cas="0")
    assert answer.status == 409
    assert (await calendars.remove(asked(store, cas="0"))).status == 409
    assert (await calendars.remove(asked(store))).status == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"Name": "other"}, "Name is 'other', but the path has 'own'"),
        ({"Namespace": "other"}, "Namespace is 'other', but the request is for 'default'"),
        ({"Hours": ["8-18"]}, 'Hours has "8-18": use a period such as 08:00-18:00'),
        ({"Only": ["none"]}, 'unknown calendar "none"'),
    ],
)
async def test_invalid_calendar_is_a_client_error(store: Store, body: object, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        await put(store, body)


@pytest.mark.parametrize(
    "query",
    [
        {"to": "2026-12-28"},
        {"from": "2026-12-28", "to": "2026-12-27"},
        {"from": "2026-01-01", "to": "2027-03-01"},
    ],
)
async def test_days_are_limited(store: Store, query: dict[str, str]) -> None:
    await put(store)
    with pytest.raises(Malformed):
        days(store, **query)


async def test_an_unknown_calendar_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        days(store)
    with pytest.raises(NotFound):
        await calendars.remove(asked(store))


async def test_versions_are_read_by_number(store: Store) -> None:
    await put(store)
    await put(store, {})
    found: Any = store.read(lambda db: calendars.read(asked(store, version="1"), db).body)
    assert found.weekdays == ["mon"]
    with pytest.raises(NotFound, match="version 3 not found"):
        store.read(lambda db: calendars.read(asked(store, version="3"), db))
