"""Send unusual requests to a daemon, and check its responses."""

import http.client
import json
import socket
import time
from contextlib import suppress
from urllib.parse import quote, urlsplit

from tests.fuzz import frames
from tests.fuzz.requests import Asked

LAST_RESORT = b"internal error"
LISTINGS = {
    "ALLOCATION": "/v1/allocations",
    "EVALUATION": "/v1/evaluations",
    "DEPLOYMENT": "/v1/deployments",
    "NODE": "/v1/nodes",
}
DEADLINE = 60.0  # timeout of a response in seconds, on a busy host


REFRESH = 25  # requests between two reads of the existing objects
TALKER = {
    "ID": "talker",
    "Type": "batch",
    "TaskGroups": [
        {
            "Name": "g",
            "Tasks": [
                {
                    "Name": "main",
                    "Driver": "raw_exec",
                    "Config": {"command": "/bin/sleep", "args": ["99999"]},
                    "Actions": [{"Name": "say", "Command": "/bin/cat"}],
                }
            ],
        }
    ],
}


class Attack:
    """A client that reconnects after each closed connection, and knows the daemon's objects."""

    def __init__(self, address: str) -> None:
        self._host = urlsplit(address).netloc
        self._http = self._connect()
        self._known: dict[str, str] = {}
        self._sent = 0

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, timeout=DEADLINE)

    def _reconnect(self) -> None:
        """Reconnect, because the server may be about to close a long idle connection."""
        self._http.close()
        self._http = self._connect()

    def _filled(self, request: Asked) -> Asked:
        """Return a request with placeholders replaced by identifiers of existing objects."""
        if self._sent % REFRESH == 0:
            for word, path in LISTINGS.items():
                _, body = self._ask(Asked("GET", f"{path}?namespace=*", None, {}))
                listed = json.loads(body)
                self._known[word] = listed[-1]["ID"] if listed else word
        self._sent += 1
        target, body = request.target, request.body
        for word, known in self._known.items():
            target = target.replace(word, known)
            body = body and body.replace(word.encode(), known.encode())
        return request._replace(target=target, body=body)

    def fault(self, asked: Asked) -> str | None:
        """Send a request; return the fault of the response.

        Status 500 is Nomad's and Vault's status for many invalid requests (docs/compatibility.md),
        and 501 reports an unsupported feature. Every other server error is a fault, and so is the
        catch-all response for unexpected errors.
        """
        try:
            asked = self._filled(asked)
            status, body = self._ask(asked)
        except (OSError, http.client.HTTPException) as error:
            return f"no answer: {error!r}"
        if status > http.client.NOT_IMPLEMENTED or LAST_RESORT in body:
            return f"{status} {body[:200]!r}"
        return None

    def _ask(self, request: Asked) -> tuple[int, bytes]:
        try:
            self._http.request(request.method, request.target, request.body, dict(request.headers))
            answer = self._http.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._reconnect()
            raise

    def start_talker(self) -> str:
        """Start a task for exec sessions; return its allocation."""
        self._reconnect()
        self._ask(Asked("POST", "/v1/jobs", json.dumps({"Job": TALKER}).encode(), {}))
        path, index = "/v1/job/talker/allocations", 1
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            _, body = self._ask(Asked("GET", f"{path}?index={index}&wait=1s", None, {}))
            for pair in json.loads(body):
                if pair["ClientStatus"] == "running":
                    return str(pair["ID"])
                index = pair["ModifyIndex"]
        raise AssertionError("the task for exec sessions does not run")

    def fault_of_talk(self, sent: frames.Sent, alloc_id: str) -> str | None:
        """Exchange frames over a WebSocket and disconnect; return the errors in the answers."""
        try:
            status, answer = self._talk(sent, alloc_id)
            frames.codes(answer if status == http.client.SWITCHING_PROTOCOLS else b"")
        except (OSError, ValueError, IndexError) as error:
            return f"no conversation: {error!r}"
        is_ours = not 0 < status <= http.client.NOT_IMPLEMENTED or LAST_RESORT in answer
        return f"{status} {answer[:200]!r}" if is_ours else None

    def _talk(self, sent: frames.Sent, alloc_id: str) -> tuple[int, bytes]:
        path = (
            "job/talker/action" if "action=" in sent.query else f"client/allocation/{alloc_id}/exec"
        )
        lines = (
            f"GET /v1/{path}?{sent.query.replace('ALLOCATION', alloc_id)} HTTP/1.1",
            *(f"Host: {self._host}", "Connection: Upgrade", "Upgrade: websocket"),
            *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
            *sent.headers,
        )
        host, _, port = self._host.rpartition(":")
        answer = b""
        with socket.create_connection((host, int(port)), timeout=DEADLINE) as talk:
            try:
                talk.sendall("\r\n".join((*lines, "\r\n")).encode("latin-1"))
                while b"\r\n\r\n" not in answer and (piece := talk.recv(65536)):
                    answer += piece
                for piece in sent.pieces:
                    talk.sendall(piece)
                with suppress(OSError):  # the daemon has closed the connection
                    talk.shutdown(socket.SHUT_WR)
                while piece := talk.recv(65536):
                    answer += piece
            except (BrokenPipeError, ConnectionResetError):
                pass  # the daemon has closed the connection
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]) if head else 0, rest

    def end(self) -> None:
        """End all tasks, and close the connection."""
        self._reconnect()
        _, body = self._ask(Asked("GET", "/v1/jobs?namespace=*", None, {}))
        for pair in json.loads(body):
            path = f"/v1/job/{quote(pair['ID'], safe='')}?namespace={quote(pair['Namespace'])}"
            self._ask(Asked("DELETE", path, None, {}))
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()
