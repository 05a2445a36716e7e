"""The client: all operations of the library, for Trio and asyncio.

Use it in an `async with` block. Many async tasks may call its methods at the same time. Reads and
idempotent writes are repeated while the server is unreachable, so that a restart of the server goes
unnoticed.
"""

import os
import random
import ssl
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio
import httpx
import msgspec
from anyio.abc import TaskGroup

from steward_client import dispatching, downloads, waiting
from steward_client.dispatching import Dispatch
from steward_client.errors import InvalidResponse, NotFound
from steward_client.events import Event, Topics, read_events
from steward_client.job import AnyJob, Job, ParsedJob
from steward_client.locks import HeldLock, hold_lock, variable_path
from steward_client.login import CloudLogin, LoginTokens
from steward_client.logs import follow_log, read_log
from steward_client.records import (
    Allocation,
    Deployment,
    Dispatched,
    Evaluation,
    JobDetail,
    JobResult,
    JobStub,
    KeptFile,
    Plan,
    Registered,
    Variable,
)
from steward_client.rollout import Run, follow_run
from steward_client.sessions import ExecResult, ExecSession, open_session
from steward_client.together import each
from steward_client.transport import Answer, Call, Connection, Query, Retry, StaticToken, segment
from steward_client.wire import UNREADABLE, Definition

T = TypeVar("T")

OUTPUT = 64 * 1024  # bytes of each stream in a result
_ALL = {"Job": "*", "Evaluation": "*", "Allocation": "*", "Deployment": "*"}


class _Submission(Definition, frozen=True, kw_only=True):
    source: str
    format: str = "hcl2"
    variables: str = ""
    variable_flags: dict[str, str] = {}


class _Registration(Definition, frozen=True, kw_only=True):
    job: Job | msgspec.Raw
    submission: _Submission | None = None
    enforce_index: bool = False
    job_modify_index: int | None = None
    diff: bool = False
    files: dict[str, str] | None = None


class _Parse(Definition, frozen=True, kw_only=True):
    job_hcl: str = msgspec.field(name="JobHCL")
    variables: str = ""
    variable_flags: dict[str, str] = {}
    canonicalize: bool = True


class _Head(msgspec.Struct, frozen=True, rename="pascal"):
    id: str = msgspec.field(name="ID")
    namespace: str | None = None
    type: str | None = None


class Client:
    """A client of one server.

    `address` is `http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`. Any other address raises
    `ValueError`, as does a token that no header can contain. The defaults of `address`, `token`,
    `namespace` and `region` come from the environment: STEWARD_ADDR or NOMAD_ADDR, STEWARD_TOKEN or
    NOMAD_TOKEN, and so on. With `login`, the client logs in with the identity of the host and renews
    the token. `verify` is the TLS context; with False, certificates are not verified. In tests,
    `transport` replaces the network, `ids` creates the identifiers, and `chance` returns the random
    part of delays.
    """

    def __init__(
        self,
        address: str = "",
        *,
        token: str = "",
        namespace: str = "",
        region: str = "",
        login: CloudLogin | None = None,
        retry: Retry | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        ids: Callable[[], str] = lambda: str(uuid.uuid4()),
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._connection = Connection(
            address or _setting("ADDR") or "http://127.0.0.1:4646",
            namespace=namespace or _setting("NAMESPACE"),
            region=region or _setting("REGION"),
            retry=retry or Retry(),
            verify=verify,
            transport=transport,
            chance=chance,
        )
        self._connection.tokens = StaticToken(token or _setting("TOKEN"))
        self._login = login
        self._ids = ids
        self._open = AsyncExitStack()
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._connection)
        if self._login is not None:
            tokens = LoginTokens(self._connection, self._login)
            self._connection.tokens = tokens
            self._group = await anyio.create_task_group().__aenter__()
            self._group.start_soon(tokens.run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._group is not None:
            self._group.cancel_scope.cancel()
            # The task group would wrap an `Exception` of the block, so it gets only cancellations.
            concerns = (
                (None, None, None) if isinstance(error, Exception) else (kind, error, traceback)
            )
            await self._group.__aexit__(*concerns)
        await self._open.aclose()

    # --- any endpoint ---

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        repeatable: bool | None = None,
    ) -> Answer:
        """Send any request. By default, only a GET is repeated.

        Raises `ApiError` and `Unreachable`, and `ValueError` if the path does not start with a
        slash.
        """
        return await self._connection.send(
            Call(
                method=method,
                path=path,
                query=query or {},
                body=body,
                repeatable=method == "GET" if repeatable is None else repeatable,
            )
        )

    def watch(self, path: str, kind: type[T], query: Query | None = None) -> waiting.Watch[T]:
        """Yield the object at a path now, and after each change (a blocking query)."""
        return waiting.Watch(self._connection, path, kind, query or {})

    async def _get(self, path: str, kind: type[T], query: Query | None = None) -> T:
        return (await self.request("GET", path, query=query)).decode(kind)

    async def _post(self, path: str, body: object, kind: type[T], query: Query | None = None) -> T:
        answer = await self.request("POST", path, query=query, body=body, repeatable=True)
        return answer.decode(kind)

    # --- jobs ---

    async def parse(
        self, source: str, *, variables: str = "", flags: Mapping[str, str] | None = None
    ) -> ParsedJob:
        """Parse a job file in HCL. `variables` is the text of a variables file.

        Raises `BadRequest` with a line for each mistake.
        """
        body = _Parse(job_hcl=source, variables=variables, variable_flags=dict(flags or {}))
        answer = await self.request("POST", "/v1/jobs/parse", body=body, repeatable=True)
        return _parsed(answer, body)

    async def plan(self, job: AnyJob, *, diff: bool = True) -> Plan:
        """Return the effect of a registration, without registering the job."""
        body = _Registration(job=_document(job), submission=_submission(job), diff=diff)
        return await self._post(f"/v1/job/{segment(job.id)}/plan", body, Plan, _of(job))

    async def run(
        self,
        job: AnyJob,
        *,
        enforce_index: int | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Run:
        """Register a job, or a new version of it.

        `files` maps the names of uploaded files to their digests, for artifacts with
        `payload://NAME`. `enforce_index` is the `job_modify_index` of a plan. Raises `ApiError` if
        the job has changed since that plan. With 0, raises `ApiError` if the job exists.
        """
        body = _Registration(
            job=_document(job),
            submission=_submission(job),
            enforce_index=enforce_index is not None,
            job_modify_index=enforce_index,
            files=dict(files) if files else None,
        )
        answer = await self.request(
            "POST", "/v1/jobs", query=_of(job), body=body, repeatable=enforce_index is None
        )
        return Run(
            job_id=job.id, namespace=job.namespace or "", registered=answer.decode(Registered)
        )

    def follow(self, run: Run) -> AsyncGenerator[Event, None]:
        """Yield the events of a registration until its outcome is certain.

        The outcome is certain at the end of a batch job, or at the end of the rollout of a service.
        """
        return follow_run(self._connection, run)

    async def jobs(self, *, prefix: str = "", namespace: str = "") -> list[JobStub]:
        """List the jobs. The namespace `*` means all."""
        return await self._pages("/v1/jobs", list[JobStub], prefix=prefix, namespace=namespace)

    async def job(self, job_id: str, *, namespace: str = "") -> JobDetail:
        """Return the newest version of a job. Raises `NotFound`."""
        return await self._get(f"/v1/job/{segment(job_id)}", JobDetail, {"namespace": namespace})

    async def job_document(self, job_id: str, *, namespace: str = "") -> dict[str, object]:
        """Return the whole definition of a job in wire form. Raises `NotFound`."""
        path = f"/v1/job/{segment(job_id)}"
        return await self._get(path, dict[str, object], {"namespace": namespace})

    async def stop(self, job_id: str, *, purge: bool = False, namespace: str = "") -> str:
        """Stop a job; return the identifier of the evaluation. `purge` also deletes the job."""
        answer = await self.request(
            "DELETE",
            f"/v1/job/{segment(job_id)}",
            query={"purge": purge, "namespace": namespace},
            repeatable=True,
        )
        return answer.decode(Registered).eval_id

    async def deployment(self, job_id: str, *, namespace: str = "") -> Deployment | None:
        """Return the newest deployment of a job, or None if it has no deployment."""
        answer = await self.request(
            "GET", f"/v1/job/{segment(job_id)}/deployment", query={"namespace": namespace}
        )
        return None if answer.body.strip() == b"null" else answer.decode(Deployment)

    async def evaluation(self, eval_id: str) -> Evaluation:
        """Return an evaluation. Raises `NotFound`."""
        return await self._get(f"/v1/evaluation/{segment(eval_id)}", Evaluation)

    async def allocations(self, job_id: str, *, namespace: str = "") -> list[Allocation]:
        """Return the allocations of a job."""
        path = f"/v1/job/{segment(job_id)}/allocations"
        return await self._get(path, list[Allocation], {"namespace": namespace})

    async def allocation(self, alloc_id: str) -> Allocation:
        """Return an allocation. Raises `NotFound`."""
        return await self._get(f"/v1/allocation/{segment(alloc_id)}", Allocation)

    # --- dispatches and their results ---

    async def dispatch(
        self,
        job_id: str,
        *,
        payload: bytes = b"",
        meta: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        idempotency_token: str = "",
        namespace: str = "",
    ) -> Dispatched:
        """Start a child of a parameterized job, once, even if the request is repeated.

        `files` maps the names of input files to the digests that `upload` returned. Without an
        idempotency token, the client creates a new token. If your program may be restarted, pass
        the same token before and after the restart, so that no second child starts.
        """
        request = Dispatch(
            payload=payload,
            meta=dict(meta or {}),
            files=dict(files or {}),
            idempotency_token=idempotency_token,
        )
        return await dispatching.dispatch(
            self._connection, job_id, request.with_token(self._ids), namespace=namespace
        )

    async def upload(self, path: str | os.PathLike[str], *, namespace: str = "") -> str:
        """Upload an input file if the namespace does not have it yet; return the file's digest.

        Pass the digest to `dispatch`. An interrupted upload continues where it ended. Raises
        `OSError` if the file cannot be read.
        """
        from steward_client.uploads import upload  # few programs upload files

        return await upload(self._connection, path, namespace=namespace)

    async def dispatch_many(
        self, job_id: str, requests: Iterable[Dispatch], *, namespace: str = ""
    ) -> list[Dispatched]:
        """Start many children, each once; return them in the order of the requests.

        Servers with bulk dispatch start up to a thousand children in one request. Raises
        `DispatchesFailed` if the server refuses some of the dispatches. In this case, the children
        of the other dispatches have started nevertheless.
        """
        with_tokens = [request.with_token(self._ids) for request in requests]
        return await dispatching.dispatch_many(
            self._connection, job_id, with_tokens, namespace=namespace
        )

    async def wait(
        self, job: str | Run | Dispatched, *, output: int = OUTPUT, namespace: str = ""
    ) -> JobResult:
        """Wait until a job is dead; return its result.

        The result has the last `output` bytes of each task's standard output and standard error.
        Raises `NotFound` if the job is purged in the meantime.
        """
        job_id = job if isinstance(job, str) else job.job_id
        query: Query = {"namespace": namespace or (job.namespace if isinstance(job, Run) else "")}
        dead = await waiting.wait_for_job(self._connection, job_id, query)
        return await waiting.result_of(self._connection, dead, query, output=output)

    async def wait_all(
        self,
        jobs: Iterable[str | Run | Dispatched],
        *,
        output: int = OUTPUT,
        namespace: str = "",
    ) -> list[JobResult]:
        """Wait until all jobs are dead; return their results in the order of the jobs."""
        return await each(partial(self.wait, output=output, namespace=namespace), list(jobs))

    # --- events, logs, exec ---

    def events(
        self, topics: Topics | None = None, *, index: int = 0, namespace: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield events from an index on, each once, across reconnections.

        `topics` maps a topic to a key or to several keys; `*` means all. Without an index, the
        server begins with its newest events. Raises `EventsLost` if the server no longer stores
        some of the requested events.
        """
        return read_events(self._connection, topics or _ALL, index=index, namespace=namespace)

    async def output(
        self, alloc_id: str, task: str, *, kind: str = "stdout", last: int | None = None
    ) -> bytes:
        """Return the output of a task so far, or only the last `last` bytes of it.

        `kind` is stdout or stderr.
        """
        origin = "start" if last is None else "end"
        return await read_log(
            self._connection, alloc_id, task=task, kind=kind, origin=origin, offset=last or 0
        )

    def logs(
        self,
        alloc_id: str,
        task: str,
        *,
        kind: str = "stdout",
        origin: str = "start",
        offset: int = 0,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the output of a task until the task ends, each byte once, across reconnections.

        `kind` is stdout or stderr. `offset` counts bytes from `origin`, which is start or end.
        """
        return follow_log(
            self._connection, alloc_id, task=task, kind=kind, origin=origin, offset=offset
        )

    def exec(
        self, alloc_id: str, command: Sequence[str], *, task: str, tty: bool = False
    ) -> AbstractAsyncContextManager[ExecSession]:
        """Run a command inside a task while the block runs; yield the session of the command."""
        return open_session(self._connection, alloc_id, command, task=task, tty=tty)

    async def exec_run(
        self, alloc_id: str, command: Sequence[str], *, task: str, stdin: bytes = b""
    ) -> ExecResult:
        """Run a command inside a task until the command ends; return its exit code and output."""
        async with self.exec(alloc_id, command, task=task) as session:
            return await session.run(stdin)

    async def read_file(self, alloc_id: str, path: str) -> bytes:
        """Return a file below the directory of an allocation. Raises `NotFound`."""
        query: Query = {"path": path}
        # For a missing file, the second request would return an error text with status 200.
        await self.request("GET", f"/v1/client/fs/stat/{segment(alloc_id)}", query=query)
        path = f"/v1/client/fs/cat/{segment(alloc_id)}"
        return (await self.request("GET", path, query=query)).body

    async def kept_files(self, alloc_id: str) -> list[KeptFile]:
        """List the kept files of an allocation."""
        return await self._get(f"/v1/allocation/{segment(alloc_id)}/kept", list[KeptFile])

    async def save_kept(
        self, alloc_id: str, file: KeptFile, target: str | os.PathLike[str]
    ) -> None:
        """Write a kept file to `target`. The file appears there when it is complete and verified.

        Raises `NotFound`, `OSError`, and `InvalidResponse` if the content does not match its
        digest.
        """
        await downloads.save_kept(self._connection, alloc_id, file, target)

    # --- variables ---

    async def variables(self, *, prefix: str = "", namespace: str = "") -> list[Variable]:
        """List the variables, without their values."""
        return await self._pages("/v1/vars", list[Variable], prefix=prefix, namespace=namespace)

    async def variable(self, path: str, *, namespace: str = "") -> Variable | None:
        """Return a variable with its values, or None if it does not exist."""
        try:
            return await self._get(variable_path(path), Variable, {"namespace": namespace})
        except NotFound:
            return None

    async def put_variable(
        self,
        path: str,
        items: Mapping[str, str],
        *,
        cas: int | None = None,
        lock: HeldLock | None = None,
        namespace: str = "",
    ) -> Variable:
        """Create or change a variable.

        `cas` is the expected `modify_index` of the variable, or 0 for a new variable. Raises
        `Conflict` if the variable has another index. Writing to a locked variable needs its `lock`.
        """
        body: dict[str, object] = {"Path": path, "Items": dict(items)}
        if lock is not None:
            body["Lock"] = {"ID": lock.id}
        answer = await self.request(
            "PUT",
            variable_path(path),
            query={"cas": cas, "namespace": namespace},
            body=body,
            repeatable=cas is None,
        )
        return answer.decode(Variable)

    async def delete_variable(
        self, path: str, *, cas: int | None = None, namespace: str = ""
    ) -> None:
        """Delete a variable, if it exists."""
        query: Query = {"cas": cas, "namespace": namespace}
        await self.request("DELETE", variable_path(path), query=query, repeatable=cas is None)

    def lock(
        self, path: str, *, ttl: float = 15.0, delay: float = 15.0, wait: bool = True
    ) -> AbstractAsyncContextManager[HeldLock]:
        """Hold the lock of a variable while the block runs.

        `ttl` and `delay` are in seconds. A lock that is not renewed expires after `ttl`. After a
        further `delay`, other clients can acquire it. If the lock is lost, the block is cancelled
        and `LockLost` is raised. Without `wait`, raises `Conflict` if another client holds the
        lock.
        """
        return hold_lock(self._connection, path, ttl=ttl, delay=delay, wait=wait)

    # --- pages ---

    async def _pages(self, path: str, kind: type[list[T]], **query: str) -> list[T]:
        results: list[T] = []
        token = ""
        while True:
            page: Query = {**query, "per_page": 1000, "next_token": token}
            answer = await self.request("GET", path, query=page)
            results += answer.decode(kind)
            if not answer.next_token:
                return results
            if answer.next_token == token:
                raise InvalidResponse("the server sent the same page token twice")
            token = answer.next_token


def _setting(name: str) -> str:
    return os.environ.get(f"STEWARD_{name}") or os.environ.get(f"NOMAD_{name}") or ""


def _of(job: AnyJob) -> Query:
    return {"namespace": job.namespace} if job.namespace else {}


def _document(job: AnyJob) -> Job | msgspec.Raw:
    return job.document if isinstance(job, ParsedJob) else job


def _submission(job: AnyJob) -> _Submission | None:
    if not isinstance(job, ParsedJob) or not job.source:
        return None
    return _Submission(
        source=job.source, variables=job.variables, variable_flags=job.variable_flags
    )


def _parsed(answer: Answer, request: _Parse) -> ParsedJob:
    try:
        head = msgspec.json.decode(answer.body, type=_Head)
    except UNREADABLE as error:
        raise InvalidResponse(f"the response is not a valid job: {error}") from error
    return ParsedJob(
        id=head.id,
        namespace=head.namespace or "",
        type=head.type or "",
        document=msgspec.Raw(answer.body),
        source=request.job_hcl,
        variables=request.variables,
        variable_flags=request.variable_flags,
    )
