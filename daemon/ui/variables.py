"""Variables: their list, one with its values, and changing it if nobody else has meanwhile."""

from typing import Any

from daemon.ui import words
from daemon.ui.show import Found, action, page
from daemon.web.visits import Visit
from storage.errors import Malformed, Refused

PAGE = 100  # lines on one page of the list
BLANK = 3  # rows of the form that are empty
_CONFLICT = 409


@page("variables.html")
async def index(visit: Visit) -> Found:
    """List the variables that the visitor may list, without their values."""
    query = visit.query
    found = await visit.ask(
        "GET",
        "/v1/vars",
        namespace=query.text("namespace") or "*",
        prefix=query.text("search"),
        next_token=query.text("next_token"),
        per_page=PAGE,
    )
    return {"variables": await visit.parsed(found), "next_token": found.next_token, "blank": BLANK}


@page("variable.html")
async def variable(visit: Visit) -> Found:
    """Show a variable with its values, in a form."""
    namespace = visit.query.text("namespace") or "default"
    found = await visit.get(words.address("/v1/var/", visit["path"]), namespace=namespace)
    return {"variable": found, "namespace": namespace, "blank": BLANK}


@action
async def change(visit: Visit) -> str:
    """Store the values that the form holds, or remove the variable."""
    form = visit.form
    path, namespace = form.get("path", "").strip(), form.get("namespace", "").strip() or "default"
    if not path:
        raise Malformed('path = "" names no variable: write one, as app/settings')
    index = form.get("index", "0")
    if not (index.isascii() and index.isdecimal() and len(index) < 20):
        raise Malformed(f"index = {index!r} is not the index of a variable: load its page again")
    target = words.address("/v1/var/", path)
    where: dict[str, object] = {"namespace": namespace, "cas": int(index)}
    if form.get("act") == "remove":
        answer = await visit.ask("DELETE", target, **where)
    else:
        body = {"Namespace": namespace, "Path": path, "Items": _items(visit)}
        answer = await visit.ask("POST", target, body, **where)
    if answer.status == _CONFLICT:
        raise Refused(f"{path} is not as it was when this page was loaded: load it again")
    visit.said(answer)
    if form.get("act") == "remove":
        return "/ui/variables"
    return words.address("/ui/variable/", path, namespace=namespace)


def _items(visit: Visit) -> dict[str, str]:
    """Return the values that a form holds, row by row. Raises `Malformed`."""
    items: dict[str, str] = {}
    form: Any = visit.form
    for field, name in form.items():
        if field.startswith("name.") and name.strip():
            if name.strip() in items:
                raise Malformed(f"the name {name.strip()!r} stands there twice")
            value = form.get(f"value.{field.removeprefix('name.')}", "")
            items[name.strip()] = value.replace("\r\n", "\n")
    return items
