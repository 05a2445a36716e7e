"""Signing in, by a token or by a link that works once, and signing out."""

from daemon.acl import onetime
from daemon.ui import words
from daemon.ui.show import SIGN_IN, Found, gone_to, page, shown, status_of
from daemon.web.reply import Reply
from daemon.web.visits import PLACE, Visit
from storage.errors import Denied, Malformed, TooOften, UnknownToken

_UNKNOWN = "There is no token with this secret, or its time is over."


@page("sign_in.html")
async def form(visit: Visit) -> Found:
    """Ask who is there."""
    return {"next": _next(visit.query.text("next")), "ended": visit.query.text("ended")}


async def sign_in(visit: Visit) -> Reply:
    """Begin a session."""
    target = _next(visit.form.get("next", ""))
    try:
        await visit.sign_in(await _secret(visit))
    except (UnknownToken, Denied, Malformed, TooOften) as error:
        said = str(error) if isinstance(error, Malformed | TooOften) else _UNKNOWN
        found = {"next": target, "message": said}
        return shown(visit, "sign_in.html", found, status_of(error))
    return gone_to(target)


async def _secret(visit: Visit) -> str:
    """Return the secret that was shown: the token's, or that for which a link stands."""
    parts, one_time = visit.request.parts, visit.form.get("one_time", "").strip()
    if not one_time:
        return visit.form.get("token", "").strip()
    parts.tokens.listen_to(visit.request.address)
    try:
        return (await onetime.exchange(parts.store, parts.tokens, one_time)).secret
    except Denied:
        parts.tokens.note_failure(visit.request.address)
        raise


async def sign_out(visit: Visit) -> Reply:
    """End the session."""
    visit.sign_out()
    return gone_to(SIGN_IN if visit.asks_for_tokens else PLACE)


def _next(target: str) -> str:
    return target if words.is_ours(target) else PLACE
