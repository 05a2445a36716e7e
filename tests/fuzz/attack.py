"""Sending strange requests to a daemon, and what it may not answer."""

import http.client
import json
from urllib.parse import urlsplit

from tests.fuzz.requests import Asked

LAST_RESORT = b"internal error"
LISTINGS = {
    "ALLOCATION": "/v1/allocations",
    "EVALUATION": "/v1/evaluations",
    "DEPLOYMENT": "/v1/deployments",
    "NODE": "/v1/nodes",
}
DEADLINE = 60.0  # seconds for an answer, on a machine under load


REFRESH = 25  # requests between two looks at what there is


class Attack:
    """A connection to a daemon that is made anew when it closes; knows what there is."""

    def __init__(self, address: str) -> None:
        self._host = urlsplit(address).netloc
        self._http = self._connect()
        self._known: dict[str, str] = {}
        self._sent = 0

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, timeout=DEADLINE)

    def _filled(self, asked: Asked) -> Asked:
        """Return a request with identifiers of what there is in the place of their names."""
        if self._sent % REFRESH == 0:
            for word, path in LISTINGS.items():
                _, body = self._ask(Asked("GET", f"{path}?namespace=*", None, {}))
                listed = json.loads(body)
                self._known[word] = listed[-1]["ID"] if listed else word
        self._sent += 1
        target, body = asked.target, asked.body
        for word, known in self._known.items():
            target = target.replace(word, known)
            body = body and body.replace(word.encode(), known.encode())
        return asked._replace(target=target, body=body)

    def fault(self, asked: Asked) -> str | None:
        """Send a request; return what is wrong with the answer.

        A status of 500 is the peer's for many mistakes (docs/compatibility.md); 501 says what is
        not offered; of the others that say that it is our fault, none is right, and the last resort never is.
        """
        try:
            asked = self._filled(asked)
            status, body = self._ask(asked)
        except (OSError, http.client.HTTPException) as error:
            return f"no answer: {error!r}"
        if status > http.client.NOT_IMPLEMENTED or LAST_RESORT in body:
            return f"{status} {body[:200]!r}"
        return None

    def _ask(self, asked: Asked) -> tuple[int, bytes]:
        try:
            self._http.request(asked.method, asked.target, asked.body, dict(asked.headers))
            answer = self._http.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._http.close()
            self._http = self._connect()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._http.close()
