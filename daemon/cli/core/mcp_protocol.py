"""The messages of the Model Context Protocol over standard input and output. No I/O.

A message is one line of JSON-RPC 2.0. Clients of the revisions up to 2025-11-25 begin with
`initialize`. Since revision 2026-07-28 there is no handshake, and each request names its revision.
"""

from collections.abc import Callable, Mapping

import msgspec

from daemon.version import VERSION
from storage.errors import Malformed

HANDSHAKE_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_REVISIONS = ("2026-07-28",)
_WITH_BATCHES = "2025-03-26"  # the only revision with batches; servers must answer them
_MOST_IN_BATCH = 100  # messages; each may take as long as a request to the daemon
_REVISION = "io.modelcontextprotocol/protocolVersion"  # in `_meta` of a request
_SERVER = "io.modelcontextprotocol/serverInfo"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
UNSUPPORTED_REVISION = -32022

_COMPLETE: Mapping[str, object] = {"resultType": "complete"}
_NOT_CACHED: Mapping[str, object] = {**_COMPLETE, "ttlMs": 0, "cacheScope": "private"}

Parameters = Mapping[str, object]
Result = Mapping[str, object]


class ProtocolError(Exception):
    """An error response; `data` has additional data for the client."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The description of a tool for clients; `input_schema` is a JSON schema."""

    name: str
    description: str
    input_schema: Mapping[str, object]
    annotations: Mapping[str, bool]


class ToolOutput(msgspec.Struct, frozen=True):
    """The text that a tool returns: its result or an error message."""

    text: str
    is_error: bool = False


class McpServer:
    """The server. `call` runs a tool, and raises `Malformed` for invalid arguments."""

    def __init__(
        self,
        tools: tuple[ToolSpec, ...],
        call: Callable[[str, Parameters], ToolOutput],
        instructions: str,
    ) -> None:
        self._tools, self._call, self._instructions = tools, call, instructions
        self._revision = ""  # the result of the handshake
        self._methods: Mapping[str, Callable[[Parameters], Result]] = {
            "initialize": self._initialize,
            "server/discover": self._discover,
            "ping": lambda _: {},
            "tools/list": self._list,
            "tools/call": self._run,
        }

    def answer(self, line: bytes) -> bytes | None:
        """Return the response to a line, or None for a notification or a response."""
        try:
            document = _document(line)
            if isinstance(document, list) and self._revision == _WITH_BATCHES:
                answers = self._answers(document)
                return msgspec.json.encode(answers) if answers else None
        except ProtocolError as error:
            return msgspec.json.encode(_fault(None, error))
        answer = self._answer(document)
        return None if answer is None else msgspec.json.encode(answer)

    def _answers(self, batch: list[object]) -> list[Result]:
        """Return the responses to a batch. Raises `ProtocolError` for an empty or large batch."""
        if not 0 < len(batch) <= _MOST_IN_BATCH:
            raise ProtocolError(
                INVALID_REQUEST,
                f"the batch has {len(batch)} messages; it must have from 1 to {_MOST_IN_BATCH}",
            )
        answers = [self._answer(document, in_batch=True) for document in batch]
        return [answer for answer in answers if answer is not None]

    def _answer(self, document: object, *, in_batch: bool = False) -> Result | None:
        number: object = None
        try:
            message = _message(document)
            number = message.get("id")
            if _needs_no_answer(message):
                return None
            result = self._result(message, in_batch=in_batch)
        except ProtocolError as error:
            return _fault(number, error)
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def _result(self, message: Mapping[str, object], *, in_batch: bool) -> Result:
        if "method" not in message or message.get("id") is None:
            raise ProtocolError(INVALID_REQUEST, "method or id is missing")
        name, parameters = message["method"], message.get("params", {})
        if in_batch and name == "initialize":
            raise ProtocolError(INVALID_REQUEST, "initialize cannot be part of a batch")
        method = self._methods.get(name) if isinstance(name, str) else None
        if method is None:
            raise ProtocolError(METHOD_NOT_FOUND, f"method {name!r} is not supported")
        if not isinstance(parameters, dict):
            raise ProtocolError(INVALID_PARAMS, "params is not an object")
        _check_revision(parameters)
        return method(parameters)

    def _initialize(self, parameters: Parameters) -> Result:
        requested = parameters.get("protocolVersion")
        self._revision = (
            str(requested) if requested in HANDSHAKE_REVISIONS else HANDSHAKE_REVISIONS[-1]
        )
        return {
            "protocolVersion": self._revision,
            "capabilities": {"tools": {}},
            "serverInfo": _server(),
            "instructions": self._instructions,
        }

    def _discover(self, _: Parameters) -> Result:
        return {
            **_NOT_CACHED,
            "supportedVersions": list(STATELESS_REVISIONS),
            "capabilities": {"tools": {}},
            "instructions": self._instructions,
            "_meta": {_SERVER: _server()},
        }

    def _list(self, _: Parameters) -> Result:
        return {**_NOT_CACHED, "tools": self._tools}

    def _run(self, parameters: Parameters) -> Result:
        name, arguments = parameters.get("name"), parameters.get("arguments")
        names = [tool.name for tool in self._tools]
        if name not in names:
            tool_names = ", ".join(names)
            raise ProtocolError(
                INVALID_PARAMS, f"there is no tool {name!r}; the tools are: {tool_names}"
            )
        if arguments is None:  # some clients send null for a tool without arguments
            arguments = {}
        if not isinstance(arguments, dict):
            raise ProtocolError(INVALID_PARAMS, "arguments is not an object")
        try:
            output = self._call(str(name), arguments)
        except Malformed as error:
            output = ToolOutput(str(error), is_error=True)
        content = [{"type": "text", "text": output.text}]
        return {**_COMPLETE, "content": content, "isError": output.is_error}


def _fault(number: object, error: ProtocolError) -> Result:
    """Return an error response to the message with the ID `number`."""
    fault: dict[str, object] = {"code": error.code, "message": str(error)}
    if error.data is not None:
        fault["data"] = error.data
    return {"jsonrpc": "2.0", "id": number, "error": fault}


def _document(line: bytes) -> object:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(PARSE_ERROR, f"the line is not JSON: {error}") from error


def _message(message: object) -> Mapping[str, object]:
    """Return a message. Raises `ProtocolError` for anything else, such as a batch."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, 'the line is not an object with "jsonrpc": "2.0"')
    if not isinstance(message.get("id"), str | int | None):
        raise ProtocolError(INVALID_REQUEST, "id is neither a string nor an integer")
    return message


def _needs_no_answer(message: Mapping[str, object]) -> bool:
    """Return whether a message is a notification or a response."""
    if "method" in message:
        return "id" not in message
    return "result" in message or "error" in message


def _check_revision(parameters: Parameters) -> None:
    """Raise `ProtocolError` if a request names an unknown revision."""
    meta = parameters.get("_meta")
    revision = meta.get(_REVISION) if isinstance(meta, dict) else None
    if revision is not None and revision not in (*STATELESS_REVISIONS, *HANDSHAKE_REVISIONS):
        supported = {"supported": list(STATELESS_REVISIONS), "requested": revision}
        raise ProtocolError(
            UNSUPPORTED_REVISION, f"revision {revision!r} is not supported", supported
        )


def _server() -> Mapping[str, str]:
    return {"name": "steward", "version": VERSION}
