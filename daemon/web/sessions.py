"""Sessions: who has signed in with a browser, by the secret in its cookie.

A session stands for a token and lives no longer: the token's secret is looked up with every
request, as that of a program is. Sessions are kept in memory alone, so that neither the store nor
a snapshot of it opens anything; a daemon that starts again asks people to sign in again.
"""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from storage.records.base import HOUR

MOST = 1000  # the one that has been idle longest goes first
IDLE = 12 * HOUR


class Session(msgspec.Struct):
    """One browser that has signed in."""

    name: str  # what its cookie says
    token: str  # the secret that it stands for
    proof: str  # what its forms carry, which pages of other sites cannot know
    seen_at: int  # nanoseconds
    is_own: bool = False  # the token was made for this session: it ends with it


class Sessions:
    """The sessions of one daemon. `new_secret` makes secrets that cannot be guessed."""

    def __init__(self, new_secret: Callable[[], str]) -> None:
        self._new_secret = new_secret
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def begin(self, token: str, now: int, *, is_own: bool = False) -> Session:
        """Return a new session, never one that was there before: its name is a fresh secret."""
        made = Session(self._new_secret(), token, self._new_secret(), now, is_own)
        self._sessions[made.name] = made
        while len(self._sessions) > MOST:
            self._sessions.popitem(last=False)
        return made

    def find(self, name: str, now: int) -> Session | None:
        """Return a session that has not been idle for too long."""
        found = self._sessions.get(name)
        if found is None:
            return None
        if not self.has(found, now):
            self.end(name)
            return None
        found.seen_at = now
        self._sessions.move_to_end(name)
        return found

    def has(self, session: Session, now: int) -> bool:
        """Tell whether a session has not ended, nor been idle for too long; asking is no use of it."""
        return self._sessions.get(session.name) is session and now - session.seen_at <= IDLE

    def end(self, name: str) -> None:
        """Forget a session, if there is one."""
        self._sessions.pop(name, None)
