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
async def form(visit: UiRequest) -> Found:
    """Show the login form."""
    return {"next": _next(visit.query.text("next")), "ended": visit.query.text("ended")}


async def sign_in(visit: UiRequest) -> HandlerReply:
    """Start a session."""
    target, by_login = _next(visit.form.get("next", "")), bool(visit.form.get("jwt"))
    try:
        secret = await _logged_in(visit) if by_login else await _secret(visit)
        await visit.sign_in(secret, is_own=by_login)
    except (UnknownToken, Denied, Malformed, NotFound, TooOften) as error:
        is_told = by_login or isinstance(error, Malformed | TooOften)
        found = {
            "next": target,
            "message": str(error) if is_told else _UNKNOWN,
            "said": _said(visit),
        }
        return await render_page(visit, "sign_in.html", found, status_of(error))
    return redirect_to(target)


async def _secret(visit: UiRequest) -> str:
    """Return the secret in the form: of the token, or of a one-time link."""
    parts, one_time = visit.request.parts, visit.form.get("one_time", "").strip()
    if not one_time:
        return visit.form.get("token", "").strip()
    try:
        return (
            await one_time_tokens.exchange_one_time_token(parts.store, parts.tokens, one_time)
        ).secret
    except Denied:
        parts.tokens.note_failure(visit.request.party)
        raise


async def _logged_in(visit: UiRequest) -> str:
    """Return the secret of a token issued for an identity of the directory."""
    said = {**_said(visit), "jwt": visit.form["jwt"].strip()}
    place = said.pop("method", "").strip("/")
    if not visit.can_log_in_at(place):  # other paths may not be login methods
        raise NotFound(f"there is no login method at {place}")
    answer = await visit.post(f"/v1/auth/{place}/login", said)
    secret: str = answer["auth"]["client_token"]
    return secret


def _said(visit: UiRequest) -> dict[str, str]:
    """Return the fields of a login without its credentials."""
    fields = ("method", *(name for name in LOGIN if name != "jwt"))
    return {name: value for name in fields if (value := visit.form.get(name, "").strip())}


@with_error_message
async def sign_out(visit: UiRequest) -> HandlerReply:
    """Sign out, and revoke the token if it was created for this session."""
    await visit.sign_out()
    return redirect_to(SIGN_IN if visit.asks_for_tokens else PLACE)


def _next(target: str) -> str:
    return target if formatting.is_internal_url(target) else PLACE
