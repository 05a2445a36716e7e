"""Dispatches of parameterized jobs. A repeated dispatch does not start a second child."""

import base64
from collections.abc import Callable, Iterator, Sequence

import anyio
import msgspec

from steward_client.errors import ApiError, DispatchesFailed, Unreachable
from steward_client.records import Dispatched
from steward_client.together import each
from steward_client.transport import Call, Connection, Lines, segment
from steward_client.wire import Definition, Record, decode

_LINES = 1000  # maximum of one bulk request
_BYTES = 4 * 1024 * 1024  # maximum of one bulk request
_NO_BULK = frozenset({400, 404, 405})  # the server has no bulk dispatch, and dispatched nothing


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch. Dispatches with the same `idempotency_token` share one child.

    `files` has the digests of uploaded files, by name.
    """

    payload: bytes = b""
    meta: dict[str, str] = {}
    files: dict[str, str] = {}
    idempotency_token: str = ""

    def with_token(self, ids: Callable[[], str]) -> "Dispatch":
        """Return the dispatch with an idempotency token; create the token if it is missing."""
        token = self.idempotency_token or ids()
        return msgspec.structs.replace(self, idempotency_token=token)


class _Line(Definition, frozen=True, kw_only=True):
    payload: bytes = b""
    meta: dict[str, str] = {}
    files: dict[str, str] = {}
    idempotency_token: str = ""


class _Answer(Record, frozen=True, kw_only=True):
    """The answer to a line of a bulk request. Lines are counted from 1."""

    line: int
    dispatched_job_id: str = ""
    eval_id: str = ""
    index: int = 0
    field: str = ""
    error: str = ""


async def dispatch(
    connection: Connection, job_id: str, request: Dispatch, *, namespace: str
) -> Dispatched:
    """Start a child, or return the child that a dispatch with the same token has started."""
    call = Call(
        method="POST",
        path=_path(job_id),
        query={"namespace": namespace, "idempotency_token": request.idempotency_token},
        body=_body(request),
        repeatable=True,
    )
    return (await connection.send(call)).decode(Dispatched)


async def dispatch_many(
    connection: Connection, job_id: str, requests: Sequence[Dispatch], *, namespace: str
) -> list[Dispatched]:
    """Start children, with bulk requests if the server supports them. Raises `DispatchesFailed`."""
    bulk = _Bulk(connection, job_id, requests, namespace)
    try:
        for numbers in _batches(requests):
            await bulk.send(numbers)
    except ApiError as error:
        if error.status not in _NO_BULK:
            raise
        await _singly(connection, job_id, requests, namespace, bulk)
    if bulk.failures:
        raise DispatchesFailed(bulk.failures, bulk.children)
    return [bulk.children[number] for number in range(len(requests))]


async def _singly(
    connection: Connection,
    job_id: str,
    requests: Sequence[Dispatch],
    namespace: str,
    done: "_Bulk",
) -> None:
    """Send the dispatches that have no answer yet, one by one."""

    async def send(number: int) -> None:
        try:
            done.children[number] = await dispatch(
                connection, job_id, requests[number], namespace=namespace
            )
        except ApiError as error:
            done.failures[number] = str(error)

    await each(send, done.open(range(len(requests))))


class _Bulk:
    """Sends bulk requests, and collects the answers.

    The dispatches are numbered from 0. `children` and `failures` have the answers by number.
    """

    def __init__(
        self, connection: Connection, job_id: str, requests: Sequence[Dispatch], namespace: str
    ) -> None:
        self._connection = connection
        self._requests = requests
        self._path = f"{_path(job_id)}/bulk"
        self._query = {"namespace": namespace}
        self.children: dict[int, Dispatched] = {}
        self.failures: dict[int, str] = {}

    def open(self, numbers: Sequence[int]) -> list[int]:
        """Return those of the `numbers` whose dispatches have no answer yet."""
        answered = self.children.keys() | self.failures.keys()
        return [number for number in numbers if number not in answered]

    async def send(self, numbers: Sequence[int]) -> None:
        """Send dispatches until all have an answer. Raises `ApiError` and `Unreachable`."""
        attempt, last_sign = 0, anyio.current_time()
        while missing := self.open(numbers):
            try:
                await self._send(missing)
            except Unreachable:
                if len(self.open(missing)) < len(missing):
                    attempt, last_sign = 0, anyio.current_time()
                delay = self._connection.delay(attempt)
                if anyio.current_time() + delay > last_sign + self._connection.retry.within:
                    raise
                await anyio.sleep(delay)
                attempt += 1

    async def _send(self, numbers: list[int]) -> None:
        lines = [_line(self._requests[number]) for number in numbers]
        call = Call(method="POST", path=self._path, query=self._query, body=b"\n".join(lines))
        async with self._connection.stream(call) as chunks:
            async for text in Lines(chunks):
                answer = decode(text, _Answer)
                self._note(numbers[answer.line - 1], answer)
        if self.open(numbers):
            raise Unreachable("the server answered only some of the dispatches")

    def _note(self, number: int, answer: _Answer) -> None:
        if answer.error:
            self.failures[number] = ": ".join(filter(None, (answer.field, answer.error)))
            return
        self.children[number] = Dispatched(
            job_id=answer.dispatched_job_id, eval_id=answer.eval_id, index=answer.index
        )


def _path(job_id: str) -> str:
    return f"/v1/job/{segment(job_id)}/dispatch"


def _body(request: Dispatch) -> dict[str, object]:
    body: dict[str, object] = {
        "Payload": base64.b64encode(request.payload).decode(),
        "Meta": request.meta,
    }
    return {**body, "Files": request.files} if request.files else body


def _line(request: Dispatch) -> bytes:
    line = _Line(
        payload=request.payload,
        meta=request.meta,
        files=request.files,
        idempotency_token=request.idempotency_token,
    )
    return msgspec.json.encode(line)


def _batches(requests: Sequence[Dispatch]) -> Iterator[list[int]]:
    """Yield lists of dispatch numbers. The dispatches of one list fit into one bulk request."""
    batch: list[int] = []
    size = 0
    for number, request in enumerate(requests):
        length = len(_line(request)) + 1
        if batch and (len(batch) == _LINES or size + length > _BYTES):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += length
    if batch:
        yield batch
