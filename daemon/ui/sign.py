"""Signing in, by a token, by a link that works once or by an identity of the directory, and out."""

from daemon.acl import onetime
from daemon.ui import words
from daemon.ui.identity import LOGIN
from daemon.ui.show import SIGN_IN, Found, gone_to, page, shown, status_of, telling
from daemon.web.reply import Reply
from daemon.web.visits import PLACE, Visit
from storage.errors import Denied, Malformed, NotFound, TooOften, UnknownToken

_UNKNOWN = "There is no token with this secret, or its time is over."


@page("sign_in.html")
async def form(visit: Visit) -> Found:
    """Ask who is there."""
    return {"next": _next(visit.query.text("next")), "ended": visit.query.text("ended")}


async def sign_in(visit: Visit) -> Reply:
    """Begin a session."""
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
        return await shown(visit, "sign_in.html", found, status_of(error))
    return gone_to(target)


async def _secret(visit: Visit) -> str:
    """Return the secret that was shown: the token's, or that for which a link stands."""
    parts, one_time = visit.request.parts, visit.form.get("one_time", "").strip()
    if not one_time:
        return visit.form.get("token", "").strip()
    try:
        return (await onetime.exchange(parts.store, parts.tokens, one_time)).secret
    except Denied:
        parts.tokens.note_failure(visit.request.address)
        raise


async def _logged_in(visit: Visit) -> str:
    """Return the secret of the token for which somebody's identity of the directory stands."""
    said = {**_said(visit), "jwt": visit.form["jwt"].strip()}
    place = said.pop("method", "").strip("/")
    if not visit.can_log_in_at(place):  # what else there is below may be no login
        raise NotFound(f"there is no login method at {place}")
    answer = await visit.post(f"/v1/auth/{place}/login", said)
    secret: str = answer["auth"]["client_token"]
    return secret


def _said(visit: Visit) -> dict[str, str]:
    """Return what somebody said who logs in, but for what opens something."""
    fields = ("method", *(name for name in LOGIN if name != "jwt"))
    return {name: value for name in fields if (value := visit.form.get(name, "").strip())}


@telling
async def sign_out(visit: Visit) -> Reply:
    """End the session, and its token if that was made for it."""
    await visit.sign_out()
    return gone_to(SIGN_IN if visit.asks_for_tokens else PLACE)


def _next(target: str) -> str:
    return target if words.is_ours(target) else PLACE
