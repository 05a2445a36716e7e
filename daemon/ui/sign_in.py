"""Login with a token, a one-time link or an identity of the directory, and logout."""

from daemon.acl import one_time_tokens
from daemon.ui import formatting
from daemon.ui.identity import LOGIN
from daemon.ui.render import (
    SIGN_IN,
    Found,
    page,
    redirect_to,
    render_page,
    status_of,
    with_error_message,
)
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import PLACE, UiRequest
from storage.errors import Denied, Malformed, NotFound, TooOften, UnknownToken

_UNKNOWN = "There is no token with this secret, or it has expired."


@page("sign_in.html")
async def form(ui_request: UiRequest) -> Found:
    """Show the login form."""
    return {"next": _next(ui_request.query.text("next")), "ended": ui_request.query.text("ended")}


async def sign_in(ui_request: UiRequest) -> HandlerReply:
    """Start a session with the credentials in the form, or show the form again with the error."""
    target, by_login = _next(ui_request.form.get("next", "")), bool(ui_request.form.get("jwt"))
    try:
        secret = await _logged_in(ui_request) if by_login else await _secret(ui_request)
        await ui_request.sign_in(secret, is_own=by_login)
    except (UnknownToken, Denied, Malformed, NotFound, TooOften) as error:
        is_told = by_login or isinstance(error, Malformed | TooOften)
        context = {
            "next": target,
            "message": str(error) if is_told else _UNKNOWN,
            "said": _login_fields(ui_request),
        }
        return await render_page(ui_request, "sign_in.html", context, status_of(error))
    return redirect_to(target)


async def _secret(ui_request: UiRequest) -> str:
    """Return the secret of the token with which the user signs in.

    The form contains this secret, or a one-time secret that is exchanged for it.
    """
    parts, one_time = ui_request.request.parts, ui_request.form.get("one_time", "").strip()
    if not one_time:
        return ui_request.form.get("token", "").strip()
    try:
        return (
            await one_time_tokens.exchange_one_time_token(parts.store, parts.tokens, one_time)
        ).secret
    except Denied:
        parts.tokens.record_failure(ui_request.request.client_key)
        raise


async def _logged_in(ui_request: UiRequest) -> str:
    """Log in with an identity of the directory, and return the secret of the issued token."""
    fields = {**_login_fields(ui_request), "jwt": ui_request.form["jwt"].strip()}
    mount_path = fields.pop("method", "").strip("/")
    if not ui_request.can_log_in_at(mount_path):  # other paths may not be login methods
        raise NotFound(f"there is no login method at {mount_path}")
    answer = await ui_request.post(f"/v1/auth/{mount_path}/login", fields)
    secret: str = answer["auth"]["client_token"]
    return secret


def _login_fields(ui_request: UiRequest) -> dict[str, str]:
    """Return the fields of a login without its credentials."""
    fields = ("method", *(name for name in LOGIN if name != "jwt"))
    return {name: value for name in fields if (value := ui_request.form.get(name, "").strip())}


@with_error_message
async def sign_out(ui_request: UiRequest) -> HandlerReply:
    """Sign out, and revoke the token if it was created for this session."""
    await ui_request.sign_out()
    return redirect_to(SIGN_IN if ui_request.asks_for_tokens else PLACE)


def _next(target: str) -> str:
    return target if formatting.is_internal_url(target) else PLACE
