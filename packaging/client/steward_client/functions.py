"""Functions that run as jobs: decorate a function of an importable module with `@task`.

Arguments and results are JSON, so only values that msgspec can encode are permitted. The program
and the task convert them by the type annotations of the function. Nothing is pickled: the
task imports the module and calls the function by its name.
"""

import hashlib
import importlib.util
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

import msgspec

from steward_client.client import Client
from steward_client.dispatching import Dispatch
from steward_client.errors import InvalidResponse, NotFound, TaskFailed
from steward_client.job import (
    DispatchPayload,
    EphemeralDisk,
    Group,
    Job,
    LogConfig,
    Parameterized,
    ReschedulePolicy,
    Resources,
    RestartPolicy,
    Task,
)
from steward_client.records import JobResult

P = ParamSpec("P")
R = TypeVar("R")

ARGUMENTS = "arguments.json"  # in the `local` directory of the task
RESULT = "result.json"
_TASK = "main"
_DISK = 50  # MB
_SHOWN = 2000  # bytes of standard error in the message of an error


class Arguments(msgspec.Struct, frozen=True):
    """The arguments of a call."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class Failure(msgspec.Struct, frozen=True):
    """The exception of a function."""

    type: str
    message: str
    traceback: str


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a call: a result or a failure."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the job that runs a function.

    `python` is the path of the interpreter, which must be able to import this library. `path` lists
    further directories from which it imports modules. The default is the directories of the
    function's module and of this library. `retries` is the number of further attempts after a
    failure.
    """

    driver: str = "raw_exec"
    python: str = sys.executable
    path: Sequence[str] = ()
    env: Mapping[str, str] = {}
    cpu: int = 100
    memory_mb: int = 128
    retries: int = 0
    namespace: str = ""


class RemoteFunction(Generic[P, R]):
    """A function that runs in this process when called, and as a job by `run` and `submit`."""

    def __init__(self, function: Callable[P, R], options: Options) -> None:
        if function.__module__ == "__main__" or "<" in function.__qualname__:
            raise ValueError(
                f"{function.__qualname__} of module {function.__module__} cannot be imported by a "
                "task: move it to the top level of a module"
            )
        self.function = function
        self.options = options
        self.name = f"{function.__module__}:{function.__qualname__}"
        self.__doc__ = function.__doc__
        self._registered: weakref.WeakSet[Client] = weakref.WeakSet()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this process."""
        return self.function(*args, **kwargs)

    async def run(self, client: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function as a job; return its result. Raises `TaskFailed`."""
        return await (await self.submit(client, *args, **kwargs)).result()

    async def submit(self, client: Client, /, *args: P.args, **kwargs: P.kwargs) -> "RemoteCall[R]":
        """Start the function as a job; return the running call."""
        self._bind(*args, **kwargs)
        (call,) = await self._start(client, [Arguments([*args], {**kwargs})])
        return call

    async def map(self, client: Client, calls: Iterable[Sequence[Any]], /) -> list[R]:
        """Run the function once for each list of arguments; return the results in the same order.

        Raises `TaskFailed` for the first call that failed.
        """
        arguments_of_calls = [Arguments([*args]) for args in calls]
        for arguments in arguments_of_calls:
            self._bind(*arguments.args)
        started = await self._start(client, arguments_of_calls)
        ends = await client.wait_all(
            [call.job_id for call in started], namespace=self.options.namespace
        )
        return [await call.result_of(end) for call, end in zip(started, ends, strict=True)]

    def _bind(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # any call
        """Raise `TypeError` if the function does not take these arguments."""
        inspect.signature(self.function).bind(*args, **kwargs)

    async def _start(self, client: Client, calls: Sequence[Arguments]) -> "list[RemoteCall[R]]":
        job = self.job()
        if client not in self._registered:
            await client.run(job)
            self._registered.add(client)
        children = await client.dispatch_many(
            job.id,
            [Dispatch(payload=msgspec.json.encode(arguments)) for arguments in calls],
            namespace=self.options.namespace,
        )
        return [RemoteCall(client, self, child.job_id) for child in children]

    def job(self) -> Job:
        """Return the parameterized job whose children are the calls.

        Its identifier depends on the options, so a function with other options has another job.
        """
        options = self.options
        path = [*options.path] or default_path(self.function)
        task = Task(
            name=_TASK,
            driver=options.driver,
            config={"command": options.python, "args": ["-m", "steward_client.call", self.name]},
            env={"PYTHONPATH": ":".join(path), **options.env},
            dispatch_payload=DispatchPayload(file=ARGUMENTS),
            resources=Resources(cpu=options.cpu, memory_mb=options.memory_mb),
            log_config=LogConfig(max_files=1, max_file_size_mb=1),
        )
        group = Group(
            name=_TASK,
            tasks=[task],
            restart_policy=RestartPolicy(attempts=0, mode="fail"),
            reschedule_policy=_reschedule(options.retries),
            ephemeral_disk=EphemeralDisk(size_mb=_DISK),
        )
        digest = hashlib.sha256(msgspec.json.encode(group)).hexdigest()[:8]
        return Job(
            id=f"{self.name.replace(':', '.')}-{digest}",
            namespace=options.namespace or None,
            type="batch",
            parameterized=Parameterized(payload="required"),
            groups=[group],
        )


class RemoteCall(Generic[R]):
    """A call of a function that runs as a job."""

    def __init__(self, client: Client, function: RemoteFunction[..., R], job_id: str) -> None:
        self._client, self._function = client, function
        self.job_id = job_id

    async def result(self) -> R:
        """Wait until the call has ended; return its result. Raises `TaskFailed`."""
        namespace = self._function.options.namespace
        return await self.result_of(await self._client.wait(self.job_id, namespace=namespace))

    async def result_of(self, end: JobResult) -> R:
        """Return the result of an ended call. Raises `TaskFailed`."""
        if not end.allocations:
            raise TaskFailed(f"job {end.job_id} ended without an allocation")
        newest = end.allocations[-1].allocation
        try:
            body = await self._client.read_file(newest.id, f"{_TASK}/local/{RESULT}")
        except NotFound as error:
            raise TaskFailed(_without_result(end)) from error
        outcome = msgspec.json.decode(body, type=Outcome)
        if outcome.failure is not None:
            failure = outcome.failure
            raise TaskFailed(
                f"{self._function.name} raised {failure.type}: {failure.message}",
                remote_traceback=failure.traceback,
            )
        return self._decoded(outcome.value)

    def _decoded(self, value: msgspec.Raw) -> R:
        kind = get_type_hints(self._function.function).get("return", Any)
        try:
            result: R = msgspec.json.decode(value, type=kind)
        except msgspec.MsgspecError as error:
            raise InvalidResponse(
                f"the result of {self._function.name} is invalid: {error}"
            ) from error
        return result


@overload
def task(function: Callable[P, R], /) -> RemoteFunction[P, R]: ...


@overload
def task(
    *,
    driver: str = "raw_exec",
    python: str = sys.executable,
    path: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cpu: int = 100,
    memory_mb: int = 128,
    retries: int = 0,
    namespace: str = "",
) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...


def task(
    function: Callable[P, R] | None = None,
    /,
    *,
    driver: str = "raw_exec",
    python: str = sys.executable,
    path: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cpu: int = 100,
    memory_mb: int = 128,
    retries: int = 0,
    namespace: str = "",
) -> RemoteFunction[P, R] | Callable[[Callable[P, R]], RemoteFunction[P, R]]:
    """Decorate a function so that it can run as a job. `Options` describes the arguments.

    Raises `ValueError` for a function that a task could not import.
    """
    options = Options(
        driver=driver,
        python=python,
        path=path,
        env=env or {},
        cpu=cpu,
        memory_mb=memory_mb,
        retries=retries,
        namespace=namespace,
    )
    if function is not None:
        return RemoteFunction(function, options)
    return lambda decorated: RemoteFunction(decorated, options)


def default_path(function: Callable[..., object]) -> list[str]:
    """Return the directories from which the function's module and this library can be imported."""
    names = (function.__module__, "steward_client")
    return [*dict.fromkeys(directory for name in names for directory in _directory_of(name))]


def _directory_of(module: str) -> list[str]:
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:  # a namespace package, or one in memory
        directories = [*(spec.submodule_search_locations or ())] if spec else []
        return [str(Path(directory).parent) for directory in directories]
    file = Path(spec.origin).absolute()
    return [str(file.parents[1] if file.name == "__init__.py" else file.parent)]


def _reschedule(retries: int) -> ReschedulePolicy:
    if not retries:
        return ReschedulePolicy(attempts=0, unlimited=False)
    second = 1_000_000_000
    return ReschedulePolicy(
        attempts=retries,
        interval=24 * 3600 * second,
        delay=5 * second,
        delay_function="constant",
        unlimited=False,
    )


def _without_result(end: JobResult) -> str:
    """Return why a call has no result, as text."""
    done = end.tasks.get(_TASK)
    if done is None or done.exit_code is None:
        events = [
            event.display_message
            for state in end.allocations[-1].allocation.task_states.values()
            for event in state.events
        ]
        return f"job {end.job_id} did not run: {events[-1] if events else 'no events'}"
    how = f"signal {done.signal}" if done.signal else f"exit code {done.exit_code}"
    stderr = done.stderr[-_SHOWN:].decode(errors="replace").strip()
    return f"job {end.job_id} ended with {how} and without a result: {stderr}"
