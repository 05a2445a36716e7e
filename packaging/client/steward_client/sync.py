"""The client for programs without an event loop.

Its methods are those of `steward_client.Client`. A thread runs the event loop. The client may be
used from several threads.
"""

import os
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from steward_client import client as of_loop
from steward_client.client import OUTPUT
from steward_client.dispatching import Dispatch
from steward_client.events import Event, Topics
from steward_client.job import AnyJob, ParsedJob
from steward_client.locks import HeldLock
from steward_client.login import CloudLogin
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
    Variable,
)
from steward_client.rollout import Run
from steward_client.sessions import ExecResult, ExecSession, Output
from steward_client.transport import Answer, Query, Retry

P = ParamSpec("P")
T = TypeVar("T")


class Session:
    """A command inside a task. Iterate to read its output; then `exit_code` is known."""

    def __init__(self, portal: BlockingPortal, session: ExecSession) -> None:
        self._portal, self._session = portal, session

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the command, or None while it runs."""
        return self._session.exit_code

    def send(self, data: bytes) -> None:
        """Send input to the command."""
        self._portal.call(self._session.send, data)

    def end_input(self) -> None:
        """Close the standard input of the command."""
        self._portal.call(self._session.end_input)

    def __iter__(self) -> Iterator[Output]:
        while (output := self._portal.call(_next, self._session)) is not None:
            yield output


class Client:
    """A client of one server. Use it in a `with` block.

    The arguments are described at `steward_client.Client`.
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
    ) -> None:
        self._client = of_loop.Client(
            address,
            token=token,
            namespace=namespace,
            region=region,
            login=login,
            retry=retry,
            verify=verify,
        )
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._portal = self._open.enter_context(start_blocking_portal())
        self._open.enter_context(self._portal.wrap_async_context_manager(self._client))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, traceback)

    def _call(self, method: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        return self._portal.call(partial(method, *args, **options))

    def _iterate(self, stream: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the objects of a stream; close it when the caller stops."""
        try:
            while (element := self._portal.call(_next, stream)) is not None:
                yield element
        finally:
            self._portal.call(stream.aclose)

    def use(
        self,
        function: Callable[Concatenate[of_loop.Client, P], Awaitable[T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Call an async function, such as `run` of a `@task`, with the client of the event loop."""
        return self._portal.call(partial(function, self._client, *args, **options))

    # --- any endpoint ---

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        repeatable: bool | None = None,
    ) -> Answer:
        """Send any request. By default, only a GET is repeated.

        Raises `ApiError` and `Unreachable`.
        """
        return self._call(
            self._client.request, method, path, query=query, body=body, repeatable=repeatable
        )

    def watch(self, path: str, kind: type[T], query: Query | None = None) -> Iterator[T]:
        """Yield the object at a path now, and after each change (a blocking query)."""
        changes = self._client.watch(path, kind, query)
        while (value := self._portal.call(_next, changes)) is not None:
            yield value

    # --- jobs ---

    def parse(
        self, source: str, *, variables: str = "", flags: Mapping[str, str] | None = None
    ) -> ParsedJob:
        """Parse a job file in HCL. Raises `BadRequest` with a line for each mistake."""
        return self._call(self._client.parse, source, variables=variables, flags=flags)

    def plan(self, job: AnyJob, *, diff: bool = True) -> Plan:
        """Return the effect of a registration, without registering the job."""
        return self._call(self._client.plan, job, diff=diff)

    def run(
        self,
        job: AnyJob,
        *,
        enforce_index: int | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Run:
        """Register a job, or a new version of it. `files` maps uploaded files to their digests."""
        return self._call(self._client.run, job, enforce_index=enforce_index, files=files)

    def follow(self, run: Run) -> Iterator[Event]:
        """Yield the events of a registration until its outcome is certain."""
        return self._iterate(self._client.follow(run))

    def jobs(self, *, prefix: str = "", namespace: str = "") -> list[JobStub]:
        """List the jobs. The namespace `*` means all."""
        return self._call(self._client.jobs, prefix=prefix, namespace=namespace)

    def job(self, job_id: str, *, namespace: str = "") -> JobDetail:
        """Return the newest version of a job. Raises `NotFound`."""
        return self._call(self._client.job, job_id, namespace=namespace)

    def job_document(self, job_id: str, *, namespace: str = "") -> dict[str, object]:
        """Return the whole definition of a job in wire form. Raises `NotFound`."""
        return self._call(self._client.job_document, job_id, namespace=namespace)

    def stop(self, job_id: str, *, purge: bool = False, namespace: str = "") -> str:
        """Stop a job; return the identifier of the evaluation. `purge` also deletes the job."""
        return self._call(self._client.stop, job_id, purge=purge, namespace=namespace)

    def deployment(self, job_id: str, *, namespace: str = "") -> Deployment | None:
        """Return the newest deployment of a job, or None if it has no deployment."""
        return self._call(self._client.deployment, job_id, namespace=namespace)

    def evaluation(self, eval_id: str) -> Evaluation:
        """Return an evaluation. Raises `NotFound`."""
        return self._call(self._client.evaluation, eval_id)

    def allocations(self, job_id: str, *, namespace: str = "") -> list[Allocation]:
        """Return the allocations of a job."""
        return self._call(self._client.allocations, job_id, namespace=namespace)

    def allocation(self, alloc_id: str) -> Allocation:
        """Return an allocation. Raises `NotFound`."""
        return self._call(self._client.allocation, alloc_id)

    # --- dispatches and their results ---

    def dispatch(
        self,
        job_id: str,
        *,
        payload: bytes = b"",
        meta: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        idempotency_token: str = "",
        namespace: str = "",
    ) -> Dispatched:
        """Start a child of a parameterized job, once, even if the request is repeated."""
        return self._call(
            self._client.dispatch,
            job_id,
            payload=payload,
            meta=meta,
            files=files,
            idempotency_token=idempotency_token,
            namespace=namespace,
        )

    def upload(self, path: str | os.PathLike[str], *, namespace: str = "") -> str:
        """Upload an input file if the namespace does not have it yet; return the file's digest.

        Pass the digest to `dispatch`.
        """
        return self._call(self._client.upload, path, namespace=namespace)

    def dispatch_many(
        self, job_id: str, requests: Iterable[Dispatch], *, namespace: str = ""
    ) -> list[Dispatched]:
        """Start many children, each once; return them in the order of the requests."""
        return self._call(self._client.dispatch_many, job_id, requests, namespace=namespace)

    def wait(
        self, job: str | Run | Dispatched, *, output: int = OUTPUT, namespace: str = ""
    ) -> JobResult:
        """Wait until a job is dead; return its result.

        The result has the last `output` bytes of each task's standard output and standard error.
        """
        return self._call(self._client.wait, job, output=output, namespace=namespace)

    def wait_all(
        self, jobs: Iterable[str | Run | Dispatched], *, output: int = OUTPUT, namespace: str = ""
    ) -> list[JobResult]:
        """Wait until all jobs are dead; return their results in the order of the jobs."""
        return self._call(self._client.wait_all, jobs, output=output, namespace=namespace)

    # --- events, logs, exec ---

    def events(
        self, topics: Topics | None = None, *, index: int = 0, namespace: str | None = None
    ) -> Iterator[Event]:
        """Yield events from an index on, each once, across reconnections."""
        return self._iterate(self._client.events(topics, index=index, namespace=namespace))

    def output(
        self, alloc_id: str, task: str, *, kind: str = "stdout", last: int | None = None
    ) -> bytes:
        """Return the output of a task so far, or only the last `last` bytes of it.

        `kind` is stdout or stderr.
        """
        return self._call(self._client.output, alloc_id, task, kind=kind, last=last)

    def logs(
        self,
        alloc_id: str,
        task: str,
        *,
        kind: str = "stdout",
        origin: str = "start",
        offset: int = 0,
    ) -> Iterator[bytes]:
        """Yield the output of a task until the task ends, each byte once, across reconnections.

        `kind` is stdout or stderr. `offset` counts bytes from `origin`, which is start or end.
        """
        stream = self._client.logs(alloc_id, task, kind=kind, origin=origin, offset=offset)
        return self._iterate(stream)

    @contextmanager
    def exec(
        self, alloc_id: str, command: Sequence[str], *, task: str, tty: bool = False
    ) -> Iterator[Session]:
        """Run a command inside a task while the block runs; yield the session of the command."""
        opened = self._client.exec(alloc_id, command, task=task, tty=tty)
        with self._portal.wrap_async_context_manager(opened) as session:
            yield Session(self._portal, session)

    def exec_run(
        self, alloc_id: str, command: Sequence[str], *, task: str, stdin: bytes = b""
    ) -> ExecResult:
        """Run a command inside a task until the command ends; return its exit code and output."""
        return self._call(self._client.exec_run, alloc_id, command, task=task, stdin=stdin)

    def read_file(self, alloc_id: str, path: str) -> bytes:
        """Return a file below the directory of an allocation. Raises `NotFound`."""
        return self._call(self._client.read_file, alloc_id, path)

    def kept_files(self, alloc_id: str) -> list[KeptFile]:
        """List the kept files of an allocation."""
        return self._call(self._client.kept_files, alloc_id)

    def save_kept(self, alloc_id: str, file: KeptFile, target: str | os.PathLike[str]) -> None:
        """Write a kept file to `target`.

        The file appears there when it is complete and verified.
        """
        return self._call(self._client.save_kept, alloc_id, file, target)

    # --- variables ---

    def variables(self, *, prefix: str = "", namespace: str = "") -> list[Variable]:
        """List the variables, without their values."""
        return self._call(self._client.variables, prefix=prefix, namespace=namespace)

    def variable(self, path: str, *, namespace: str = "") -> Variable | None:
        """Return a variable with its values, or None if it does not exist."""
        return self._call(self._client.variable, path, namespace=namespace)

    def put_variable(
        self,
        path: str,
        items: Mapping[str, str],
        *,
        cas: int | None = None,
        lock: HeldLock | None = None,
        namespace: str = "",
    ) -> Variable:
        """Create or change a variable. Raises `Conflict`."""
        return self._call(
            self._client.put_variable, path, items, cas=cas, lock=lock, namespace=namespace
        )

    def delete_variable(self, path: str, *, cas: int | None = None, namespace: str = "") -> None:
        """Delete a variable, if it exists."""
        self._call(self._client.delete_variable, path, cas=cas, namespace=namespace)

    def lock(
        self, path: str, *, ttl: float = 15.0, delay: float = 15.0, wait: bool = True
    ) -> AbstractContextManager[HeldLock]:
        """Hold the lock of a variable while the block runs.

        Without an event loop, the block cannot be cancelled. So if the lock is lost, `LockLost` is
        raised only at the end of the block.
        """
        lock_held = self._client.lock(path, ttl=ttl, delay=delay, wait=wait)
        return self._portal.wrap_async_context_manager(lock_held)


async def _next(stream: AsyncIterator[T]) -> T | None:
    return await anext(stream, None)
