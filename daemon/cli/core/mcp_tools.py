"""The tools of `steward mcp`: requests to the daemon with the caller's token.

Each tool has a record of arguments, which is also its JSON schema. A tool that changes something
exists only if the caller allowed writes.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sized
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from daemon.cli.core.http_client import ApiClient, Value, segment
from daemon.cli.core.mcp_protocol import Parameters, ToolOutput, ToolSpec
from storage.errors import Malformed, StewardError

MOST_TEXT = 64 * 1024  # characters of an answer
MOST_OUTCOME = 200  # characters of an outcome in the record of a call
_SHOWN = 80  # characters of an argument in the record of a call
_UNTOLD = ("payload", "meta", "source")  # arguments that can contain secrets
_VIA = "mcp"  # the query parameter `via`, which the audit log shows

JobID = Annotated[str, Meta(min_length=1, description="ID of the job")]
Namespace = Annotated[
    str, Meta(description="Namespace; if empty, the one set for the command line")
]
JobFile = Annotated[str, Meta(min_length=1, description="The whole text of a job file in HCL")]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool, with the request that it makes."""

    writes: ClassVar[bool] = False

    namespace: Namespace = ""

    def run(self, client: "ToolClient") -> bytes:
        """Return the daemon's response."""
        raise NotImplementedError


class ListJobs(Arguments, frozen=True, kw_only=True):
    """List jobs with their type, state and reason."""

    prefix: Annotated[str, Meta(description="Beginning of the job IDs")] = ""

    def run(self, client: "ToolClient") -> bytes:
        """Return the list."""
        return client.get(
            "/v1/jobs/statuses", self, prefix=self.prefix, states=True, counts=True, per_page=200
        )


class ShowJob(Arguments, frozen=True, kw_only=True):
    """Show a job with its state, allocations and latest deployment."""

    job: JobID

    def run(self, client: "ToolClient") -> bytes:
        """Return the responses to three requests as one object."""
        path = f"/v1/job/{segment(self.job)}"
        parts = {
            "state": client.get(f"{path}/state", self),
            "allocations": client.get(f"{path}/allocations", self, task_states=False),
            "deployment": client.get(f"{path}/deployment", self),
        }
        return msgspec.json.encode({name: msgspec.Raw(text) for name, text in parts.items()})


class ExplainJob(Arguments, frozen=True, kw_only=True):
    """Explain why a job is not fully running, with the root cause of failures."""

    job: JobID

    def run(self, client: "ToolClient") -> bytes:
        """Return the reasons."""
        return client.get(f"/v1/job/{segment(self.job)}/explain", self)


class JobLogs(Arguments, frozen=True, kw_only=True):
    """Show the last output lines of a job, or the last lines that contain a string."""

    job: JobID
    task: Annotated[str, Meta(description="Task; empty for all")] = ""
    stream: Annotated[str, Meta(description="stdout or stderr; empty for both")] = ""
    lines: Annotated[int, Meta(ge=1, le=200, description="Number of lines")] = 50
    contains: Annotated[str, Meta(description="Text that the lines contain")] = ""

    def run(self, client: "ToolClient") -> bytes:
        """Return the lines."""
        path, query = f"/v1/job/{segment(self.job)}/logs", {"lines": self.lines}
        named = {"task": self.task, "type": self.stream, "contains": self.contains}
        filters = {name: value for name, value in named.items() if value}
        return client.get(
            f"{path}/{'search' if self.contains else 'lines'}", self, **query, **filters
        )


class PlanJob(Arguments, frozen=True, kw_only=True):
    """Show the changes that running a job file would make."""

    source: JobFile

    def run(self, client: "ToolClient") -> bytes:
        """Return the plan."""
        job = client.parse(self.source)
        path = f"/v1/job/{segment(str(job.get('ID', '')))}/plan"
        return client.post(path, self, {"Job": job, "Diff": True})


class RunJob(Arguments, frozen=True, kw_only=True):
    """Run a job file: create the job or update it."""

    writes: ClassVar[bool] = True

    source: JobFile

    def run(self, client: "ToolClient") -> bytes:
        """Return the response to the registration."""
        submission = {"Source": self.source, "Format": "hcl2"}
        body = {"Job": client.parse(self.source), "Submission": submission}
        return client.post("/v1/jobs", self, body)


class StopJob(Arguments, frozen=True, kw_only=True):
    """Stop a job. It can be started again."""

    writes: ClassVar[bool] = True

    job: JobID

    def run(self, client: "ToolClient") -> bytes:
        """Return the response to the stop."""
        return client.request("DELETE", f"/v1/job/{segment(self.job)}", self)


class DispatchJob(Arguments, frozen=True, kw_only=True):
    """Run a parameterized job once."""

    writes: ClassVar[bool] = True

    job: JobID
    payload: Annotated[str, Meta(max_length=16384, description="Text for the task")] = ""
    meta: Annotated[dict[str, str], Meta(description="Values of the job's meta keys")] = {}

    def run(self, client: "ToolClient") -> bytes:
        """Return the response to the dispatch."""
        payload = base64.b64encode(self.payload.encode()).decode()
        body = {"Payload": payload, "Meta": dict(self.meta)}
        return client.post(f"/v1/job/{segment(self.job)}/dispatch", self, body)


_TOOLS: Mapping[str, type[Arguments]] = {
    "list_jobs": ListJobs,
    "job_status": ShowJob,
    "explain_job": ExplainJob,
    "job_logs": JobLogs,
    "plan_job": PlanJob,
    "run_job": RunJob,
    "stop_job": StopJob,
    "dispatch_job": DispatchJob,
}


class ToolClient:
    """The requests of one tool, which the audit log marks as coming from `steward mcp`."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def get(self, path: str, arguments: Arguments, **query: Value) -> bytes:
        """Return the response to a read."""
        return self.request("GET", path, arguments, **query)

    def post(self, path: str, arguments: Arguments, body: object) -> bytes:
        """Return the response to a POST request."""
        return self.request("POST", path, arguments, body)

    def request(
        self, method: str, path: str, arguments: Arguments, body: object = None, **query: Value
    ) -> bytes:
        """Return the response to a request."""
        more: dict[str, Value] = {**query, "via": _VIA}
        if arguments.namespace:
            more["namespace"] = arguments.namespace
        return self._client.send(method, path, body, **more).body

    def parse(self, source: str) -> dict[str, Any]:
        """Return the job in a job file, as parsed by the daemon."""
        body = {"JobHCL": source, "Canonicalize": False}
        answer = self._client.send("POST", "/v1/jobs/parse", body, via=_VIA)
        return answer.decode(dict[str, Any])


def specs(*, writes: bool) -> tuple[ToolSpec, ...]:
    """Return the descriptions of the tools; with `writes`, including those that change something."""
    return tuple(
        ToolSpec(
            name=name,
            description=(kind.__doc__ or "").strip(),
            input_schema=_schema(kind),
            annotations={"readOnlyHint": not kind.writes, "destructiveHint": kind is StopJob},
        )
        for name, kind in _TOOLS.items()
        if writes or not kind.writes
    )


def caller(
    client: ApiClient, record: Callable[[str, Parameters, str], None]
) -> Callable[[str, Parameters], ToolOutput]:
    """Return a function that runs a tool; `record` gets its name, arguments and outcome."""

    def call(name: str, arguments: Parameters) -> ToolOutput:
        try:
            value = msgspec.convert(arguments, _TOOLS[name])
        except msgspec.ValidationError as error:
            record(name, arguments, "invalid")
            raise Malformed(f"arguments of {name}: {error}") from error
        try:
            text = value.run(ToolClient(client)).decode(errors="replace")
        except StewardError as error:
            record(name, arguments, str(error))
            return ToolOutput(str(error), is_error=True)
        record(name, arguments, "done")
        if len(text) > MOST_TEXT:
            text = f"{text[:MOST_TEXT]}\n[cut after {MOST_TEXT} of {len(text)} characters]"
        return ToolOutput(text)

    return call


def log_line(name: str, arguments: Parameters, outcome: str) -> str:
    """Return the line that records a call.

    It has no control characters. Texts are truncated. Values that can contain secrets are replaced
    by their lengths. So are the values of unknown arguments, which may be misspelled.
    """
    field_names = set(_TOOLS[name].__struct_fields__) - set(_UNTOLD)
    logged = {
        key[:_SHOWN]: _logged_value(value, shown=key in field_names)
        for key, value in arguments.items()
    }
    return f"tool {name} {json.dumps(logged)}: {json.dumps(outcome[:MOST_OUTCOME])}"


def _logged_value(value: object, *, shown: bool) -> str:
    if shown:
        return str(value)[:_SHOWN]
    count = len(value) if isinstance(value, Sized) else len(str(value))
    return f"{count} {'entries' if isinstance(value, Mapping) else 'characters'}"


def _schema(kind: type[Arguments]) -> Mapping[str, object]:
    _, components = msgspec.json.schema_components([kind])
    schema = components[kind.__name__]
    return {key: value for key, value in schema.items() if key not in ("title", "description")}
