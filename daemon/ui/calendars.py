"""The calendar pages: the list of calendars, and one year of a calendar."""

from datetime import date

import msgspec

from daemon.ui import calendar_year, formatting
from daemon.ui.render import Found, action, form_action, page
from daemon.web.ui_session import UiRequest, build_in_thread
from storage.errors import Malformed, Refused
from storage.records import json_steps

_CONFLICT = 409
_SET_BY_STORE = ("Name", "Namespace", "Version", "CreateIndex", "ModifyIndex")
_SAMPLE = {
    "TimeZone": "UTC",
    "Weekdays": ["mon", "tue", "wed", "thu", "fri"],
    "Holidays": {"2026-12-25": "Christmas Day"},
}


@page("calendars.html")
async def index(ui_request: UiRequest) -> Found:
    """List the calendars that the user may read."""
    query = ui_request.query
    listed, next_token = await ui_request.get_page(
        "/v1/calendars",
        ui_request.rows_per_page,
        query.text("next_token"),
        namespace=query.text("namespace") or "*",
        prefix=query.text("search"),
    )
    return {
        "calendars": listed,
        "next_token": next_token,
        "sample": _shown(_SAMPLE),
        "follow": "*",
    }


@page("calendar.html")
async def calendar(ui_request: UiRequest) -> Found:
    """Show a year of a calendar, its versions, and forms that change it."""
    namespace = ui_request.query.text("namespace") or "default"
    target = formatting.address("/v1/calendar/", ui_request["name"])
    now = await ui_request.get(f"{target}/days", namespace=namespace)
    year = ui_request.query.natural("year")
    if year is None:
        year = date.fromisoformat(now["Days"][0]["Date"]).year
    if year not in range(1970, 2200):
        raise Malformed(f"year = {year} must be from 1970 to 2199")
    first, last = date(year, 1, 1).isoformat(), date(year, 12, 31).isoformat()
    days = await ui_request.get(
        f"{target}/days", namespace=namespace, **{"from": first, "to": last}
    )
    stored = await ui_request.get(target, namespace=namespace)
    document = {key: value for key, value in stored.items() if key not in _SET_BY_STORE and value}
    return {
        "calendar": stored,
        "today": now,
        "year": year,
        "map": calendar_year.year_map(days["Days"], today=now["Days"][0]["Date"]),
        "closings": calendar_year.closings(days["Days"]),
        "versions": await ui_request.get(f"{target}/versions", namespace=namespace),
        "document": _shown(document),
        "namespace": namespace,
        "follow": "*",
    }


def _shown(document: object) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


@form_action(lambda ui_request: _page_of_form(ui_request))
async def store(ui_request: UiRequest) -> str:
    """Store the calendar that the user entered in the form."""
    name, namespace, target = _named(ui_request)
    try:
        text = ui_request.form.get("document", "").encode()
        document = await build_in_thread(json_steps.decode, text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(f"the calendar is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Malformed("the calendar must be a JSON object, such as {}")
    answer = await ui_request.ask(
        "POST", target, document, namespace=namespace, cas=_index(ui_request)
    )
    if answer.status == _CONFLICT:
        raise Refused(f"{name} has changed since this page was loaded: reload it")
    ui_request.decode_reply(answer)
    return formatting.address("/ui/calendar/", name, namespace=namespace)


@form_action(lambda ui_request: _page_of_form(ui_request))
async def import_file(ui_request: UiRequest) -> str:
    """Add the whole-day events of an iCalendar file as holidays."""
    name, namespace, target = _named(ui_request)
    content = ui_request.form.get("content", "")
    if not content.strip():
        raise Malformed(
            "content is empty: paste an iCalendar file, which begins with BEGIN:VCALENDAR"
        )
    answer = await ui_request.ask("POST", f"{target}/import", content.encode(), namespace=namespace)
    ui_request.decode_reply(answer)
    return formatting.address("/ui/calendar/", name, namespace=namespace)


@action
async def remove(ui_request: UiRequest) -> str:
    """Delete a calendar."""
    _, namespace, target = _named(ui_request)
    ui_request.decode_reply(
        await ui_request.ask("DELETE", target, namespace=namespace, cas=_index(ui_request))
    )
    return "/ui/calendars"


def _page_of_form(ui_request: UiRequest) -> str:
    """Return the URL of a form's page: the page of its calendar, or the list for a new calendar."""
    form = ui_request.form
    if form.get("index", "0") == "0":
        return "/ui/calendars"
    name, namespace = form.get("name", ""), form.get("namespace", "")
    return formatting.address("/ui/calendar/", name, namespace=namespace)


def _named(ui_request: UiRequest) -> tuple[str, str, str]:
    """Return the name, the namespace and the API URL of the calendar in a form."""
    name = ui_request.form.get("name", "").strip()
    if not name:
        raise Malformed('name = "" is empty: write a name, such as business')
    namespace = ui_request.form.get("namespace", "").strip() or "default"
    return name, namespace, formatting.address("/v1/calendar/", name)


def _index(ui_request: UiRequest) -> int:
    index = ui_request.form.get("index", "0")
    if not (index.isascii() and index.isdecimal() and len(index) < 20):
        raise Malformed(f"index = {index!r} is not the index of a calendar: reload its page")
    return int(index)
