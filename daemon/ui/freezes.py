"""The page of freezes, and the banner while a freeze is active."""

from daemon.ui import formatting
from daemon.ui.render import Found, action, form_action, page
from daemon.web.ui_session import UiRequest


@page("freezes.html", is_shared=True)
async def index(ui_request: UiRequest) -> Found:
    """List the freezes, and show the form for a new freeze."""
    listed, next_token = await ui_request.get_page(
        "/v1/freezes",
        ui_request.rows_per_page,
        ui_request.query.text("next_token"),
        namespace="*",
    )
    return {"freezes": listed, "next_token": next_token, "follow": "*"}


@form_action(lambda _: "/ui/freezes")
async def make(ui_request: UiRequest) -> str:
    """Create the freeze that the user entered in the form."""
    form = ui_request.form
    names = ("Namespace", "Jobs", "Queue", "Strength", "Reason", "Until")
    body = {name: form.get(name.lower(), "").strip() for name in names}
    reply = await ui_request.ask("POST", "/v1/freeze", body, namespace=body["Namespace"])
    ui_request.decode_reply(reply)
    return "/ui/freezes"


@action
async def thaw(ui_request: UiRequest) -> str:
    """End a freeze."""
    target = formatting.address("/v1/freeze/", ui_request.form.get("id", ""))
    namespace = ui_request.form.get("namespace", "")
    ui_request.decode_reply(await ui_request.ask("DELETE", target, namespace=namespace))
    return "/ui/freezes"
