"""Sessions of browsers, by the secret in their cookie.

A session belongs to a token, and ends when the token ends: each request of the browser is
authenticated with the token's secret, like any API request. Sessions are in memory only, so neither
the store nor a snapshot contains a secret that signs in a browser. After a restart of the daemon,
users sign in again.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from storage.records.base import HOUR

MOST = 1000  # sessions; the one that has been idle longest is evicted first
# sessions of one owner, so that one token or person does not evict the sessions of others
MOST_OF_OWNER = 20
IDLE = 12 * HOUR


class UiSession(msgspec.Struct):
    """A signed-in browser."""

    name: str  # the value of its cookie
    token: str  # the secret of its token
    proof: str  # the CSRF token of its forms
    seen_at: int  # nanoseconds
    is_own: bool = False  # the token was created for this session, and is revoked with it
    began_at: int = 0  # nanoseconds
    address: str = ""  # address of the browser at the sign-in
    accessor: str = ""  # accessor of the session's token
    owner: str = ""  # owner of the session's token: an entity, or the token itself

    @property
    def id(self) -> str:
        """Return an identifier that is not secret."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16]


class SessionStore:
    """The sessions of one daemon. `new_secret` returns secrets that cannot be guessed."""

    def __init__(self, new_secret: Callable[[], str]) -> None:
        self._new_secret = new_secret
        self._sessions: OrderedDict[str, UiSession] = OrderedDict()

    def begin(
        self,
        token: str,
        now: int,
        *,
        is_own: bool = False,
        address: str = "",
        accessor: str = "",
        owner: str = "",
    ) -> tuple[UiSession, list[UiSession]]:
        """Create a session with a new secret; return this session and the removed sessions.

        Sessions are removed if their idle time has expired or a limit on their number is exceeded.
        The caller must revoke the token of each removed session whose `is_own` is true.
        """
        name, proof = self._new_secret(), self._new_secret()
        ui_session = UiSession(
            name, token, proof, now, is_own, now, address, accessor, owner or token
        )
        evicted = [session for session in self._sessions.values() if not self.has(session, now)]
        self._sessions[ui_session.name] = ui_session
        own_sessions = [
            session for session in self._sessions.values() if session.owner == ui_session.owner
        ]
        evicted += [session for session in own_sessions[:-MOST_OF_OWNER] if session not in evicted]
        for session in evicted:
            self.end(session.name)
        while len(self._sessions) > MOST:
            evicted.append(self._sessions.popitem(last=False)[1])
        return ui_session, evicted

    def find(self, name: str, now: int) -> UiSession | None:
        """Return the session with the secret `name`, unless its idle time has expired."""
        session = self._sessions.get(name)
        if session is None or not self.has(session, now):
            return None  # `begin` evicts idle sessions, and its caller revokes their tokens
        session.seen_at = now
        self._sessions.move_to_end(name)
        return session

    def has(self, session: UiSession, now: int) -> bool:
        """Return whether a session is valid, without resetting its idle time."""
        return self._sessions.get(session.name) is session and now - session.seen_at <= IDLE

    def all(self, now: int) -> list[UiSession]:
        """Return the valid sessions, most recently used first."""
        return [session for session in reversed(self._sessions.values()) if self.has(session, now)]

    def end(self, name: str) -> None:
        """End the session with the secret `name`, if it exists."""
        self._sessions.pop(name, None)
