"""Variables: list, show, and change them with a check for concurrent changes."""

from typing import Any

from daemon.ui import formatting
from daemon.ui.render import Found, action, form_action, page
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from storage.errors import Malformed, Refused

BLANK = 3  # empty rows in the form
_CONFLICT = 409


@page("variables.html")
async def index(ui_request: UiRequest) -> Found:
    """List the variables that the user may list, without their values."""
    query = ui_request.query
    listed, next_token = await ui_request.get_page(
        "/v1/vars",
        ui_request.rows_per_page,
        query.text("next_token"),
        namespace=query.text("namespace") or "*",
        prefix=query.text("search"),
    )
    return {"variables": listed, "next_token": next_token, "blank": BLANK}


@page("variable.html")
async def variable(ui_request: UiRequest) -> Found:
    """Show a variable with its values in a form."""
    namespace = ui_request.query.text("namespace") or "default"
    document = await ui_request.get(
        formatting.address("/v1/var/", ui_request["path"]), namespace=namespace
    )
    return {"variable": document, "namespace": namespace, "blank": BLANK}


@form_action(lambda ui_request: _page_of_form(ui_request))
async def put_variable(ui_request: UiRequest) -> str:
    """Store the values in the form."""
    path, namespace, target, where = _named(ui_request)
    body = {"Namespace": namespace, "Path": path, "Items": _items(ui_request)}
    _check(ui_request, path, await ui_request.ask("POST", target, body, **where))
    return formatting.address("/ui/variable/", path, namespace=namespace)


@action
async def remove_variable(ui_request: UiRequest) -> str:
    """Delete a variable."""
    path, _, target, where = _named(ui_request)
    _check(ui_request, path, await ui_request.ask("DELETE", target, **where))
    return "/ui/variables"


def _page_of_form(ui_request: UiRequest) -> str:
    """Return the URL of a form's page: the page of its variable, or the list for a new variable."""
    form = ui_request.form
    if form.get("index", "0") == "0":
        return "/ui/variables"
    path, namespace = form.get("path", ""), form.get("namespace", "")
    return formatting.address("/ui/variable/", path, namespace=namespace)


def _named(ui_request: UiRequest) -> tuple[str, str, str, dict[str, object]]:
    """Return the path and namespace of the variable in a form, and the API URL and query for it.

    Raises `Malformed`.
    """
    form = ui_request.form
    path, namespace = form.get("path", "").strip(), form.get("namespace", "").strip() or "default"
    if not path:
        raise Malformed("path is empty: write a path, such as app/settings")
    index = form.get("index", "0")
    if not (index.isascii() and index.isdecimal() and len(index) < 20):
        raise Malformed(f"index = {index!r} is not the index of a variable: reload its page")
    target = formatting.address("/v1/var/", path)
    return path, namespace, target, {"namespace": namespace, "cas": int(index)}


def _check(ui_request: UiRequest, path: str, answer: HandlerReply) -> None:
    """Raise the error in the API's response, if any; `Refused` if the variable has changed."""
    if answer.status == _CONFLICT:
        raise Refused(f"{path} has changed since this page was loaded: reload it")
    ui_request.decode_reply(answer)


def _items(ui_request: UiRequest) -> dict[str, str]:
    """Return the values in a form, row by row. Raises `Malformed`."""
    items: dict[str, str] = {}
    form: Any = ui_request.form
    for field, name in form.items():
        if field.startswith("name.") and name.strip():
            if name.strip() in items:
                raise Malformed(f"the name {name.strip()!r} occurs twice")
            value = form.get(f"value.{field.removeprefix('name.')}", "")
            items[name.strip()] = value.replace("\r\n", "\n")
    return items
