"""`steward top`: live view of jobs, allocations and the node."""

import os
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

import click

from daemon.cli.commands.full_screen import FullScreen, ScreenEnded, opened
from daemon.cli.commands.top_view import (
    AllocationRow,
    AllocationUse,
    JobRow,
    NodeRow,
    TopFacts,
    View,
    parent_of,
)
from daemon.cli.core.http_client import (
    ApiClient,
    DaemonUnreachable,
    HttpConnection,
    RequestRejected,
    segment,
)
from daemon.cli.core.options import wants_color, with_client
from storage.records.allocation import ClientStatus, DesiredStatus
from storage.records.base import Record
from storage.records.failure import LastError
from storage.records.node import Eligibility, NodeStatus
from storage.records.usage import AllocationUsageLine, HostStats

_EVERY = 1.0  # seconds
_ANSWER_WITHIN = 3.0  # seconds: a longer wait would freeze the display
_MOST_ASKED = 60  # allocations per usage request: those on the screen, and some others
_OTHERS = 15  # of them, at least: allocations that may be off the screen
_MOST_ERRORS = 5  # errors requested at a time
_MOST_LISTED = 2000  # jobs
_LIST_SHARE = 200  # minimum interval of list reads, as a multiple of the CPU time of the last read
_HIDDEN = "steward top  nodes are not shown: "
_MEGABYTE = 1024 * 1024
_LIVE = 'ClientStatus == "running" or ClientStatus == "pending" or ClientStatus == "unknown"'
_FILTER = f'{_LIVE} or (ClientStatus == "failed" and NextAllocation == "")'


class _State(Record, frozen=True):
    state: str = ""
    reason: str = ""


class _JobLine(Record, frozen=True, kw_only=True):
    id: str
    namespace: str
    type: str
    group_count_sum: int = 0
    steward_state: _State = _State()


class _AllocationLine(Record, frozen=True, kw_only=True):
    id: str
    name: str
    namespace: str
    job_id: str
    client_status: str
    desired_status: str
    create_time: int = 0
    modify_index: int = 0
    node_id: str = ""


class _Held(Record, frozen=True, kw_only=True):
    cpu: int = 0
    memory_mb: int = 0
    cpu_total: int = 0
    memory_total_mb: int = 0


class _NodeLine(Record, frozen=True, kw_only=True):
    id: str
    name: str
    node_pool: str = ""
    drain: bool = False
    scheduling_eligibility: str = "eligible"
    status: str
    status_description: str = ""
    held: _Held = _Held()


class _Asked(NamedTuple):
    """An error, cached until its allocation changes."""

    modify_index: int
    error: str


class TopPoller:
    """The data of the display, requested as rarely as possible.

    The lists of jobs and allocations are read when the state has changed, but only at intervals
    that keep the CPU time small. The daemon spends CPU time on each measurement of usage. So each
    poll requests the usage of the rows on the screen, and of a few other rows in turn.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._jobs: list[JobRow] = []
        self._allocations: list[AllocationRow] = []
        self._nodes: list[NodeRow] = []
        self._uses: dict[str, AllocationUse] = {}
        self._errors: dict[str, _Asked] = {}
        self._index, self._listed_index = 0, -1
        self._next_list = 0.0
        self._turn = 0
        self._sees_host = True
        self._node = ""
        self._trouble = ""
        self._hidden = ""

    def facts(self) -> TopFacts:
        """Return the current data."""
        errors = {alloc_id: error.error for alloc_id, error in self._errors.items()}
        return TopFacts(
            self._jobs,
            self._allocations,
            self._uses,
            errors,
            self._node,
            self._trouble,
            self._nodes,
            self._hidden,
        )

    def poll(self, view: View, height: int, now: float) -> None:
        """Request the data that has changed since the last call.

        `height` is the number of lines on the screen, and `now` the monotonic time in seconds.
        """
        try:
            # The index is read before the lists, so that no change in between is missed.
            self._measure(self._allocations_to_measure(view, height))
            if self._index != self._listed_index and now >= self._next_list:
                is_first = self._listed_index < 0
                self._list(now)
                if is_first:
                    view.arrange(self.facts(), 0)
                    self._measure(self._allocations_to_measure(view, height))
            self._poll_errors(view, height)
            self._poll_host()
        except (DaemonUnreachable, RequestRejected) as error:
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _list(self, now: float) -> None:
        began = time.process_time()
        answer = self._client.read(
            "/v1/jobs/statuses", states=True, counts=True, per_page=_MOST_LISTED
        )
        self._jobs = [
            JobRow(
                job.id,
                job.namespace,
                job.type,
                job.steward_state.state,
                job.steward_state.reason,
                job.group_count_sum,
            )
            for job in answer.decode(list[_JobLine])
        ]
        alloc_lines = self._client.fetch(
            "/v1/allocations", list[_AllocationLine], task_states=False, filter=_FILTER
        )
        self._allocations = [
            AllocationRow(
                alloc.id,
                alloc.name,
                alloc.namespace,
                alloc.job_id,
                _state_word(alloc),
                alloc.create_time,
                alloc.modify_index,
                alloc.node_id,
            )
            for alloc in alloc_lines
        ]
        self._nodes = self._known_nodes()
        running_ids = {alloc_line.id for alloc_line in alloc_lines}
        self._uses = {key: use for key, use in self._uses.items() if key in running_ids}
        self._errors = {key: error for key, error in self._errors.items() if key in running_ids}
        self._listed_index = self._index
        self._next_list = now + max(_EVERY, (time.process_time() - began) * _LIST_SHARE)

    def _known_nodes(self) -> list[NodeRow]:
        if not self._sees_host:
            return []
        try:
            node_lines = self._client.fetch("/v1/nodes", list[_NodeLine], held=True)
        except RequestRejected as error:  # the token may not read nodes
            self._hidden = _hidden_by(error)
            return []
        self._hidden = ""
        return [
            NodeRow(
                node_line.id,
                node_line.name,
                node_line.node_pool,
                _state(node_line),
                _allocated_of(node_line),
            )
            for node_line in node_lines
        ]

    def _allocations_to_measure(self, view: View, height: int) -> list[str]:
        """Return the allocations to measure: all on the screen, and in turn some of the others."""
        running = [alloc for alloc in self._allocations if alloc.state in ("running", "stopping")]
        on_screen = {row.key for row in view.shown(height)}
        first = [
            alloc.id
            for alloc in running
            if (alloc.namespace, alloc.id) in on_screen
            or (alloc.namespace, parent_of(alloc.job_id)) in on_screen
        ][: _MOST_ASKED - _OTHERS]
        ids = [alloc.id for alloc in running]
        offset = self._turn % max(1, len(ids))
        more = [alloc_id for alloc_id in [*ids[offset:], *ids[:offset]] if alloc_id not in first]
        more = more[: _MOST_ASKED - len(first)]
        self._turn += len(more)
        return [*first, *more]

    def _measure(self, ids: list[str]) -> None:
        answer = self._client.read("/v1/client/usage", allocations=",".join(ids))
        self._index = answer.index
        for allocation_usage in answer.decode(list[AllocationUsageLine]):
            self._uses[allocation_usage.id] = AllocationUse(
                allocation_usage.cpu_percent,
                allocation_usage.memory,
                allocation_usage.restarts,
                tuple(allocation_usage.recent),
            )

    def _poll_errors(self, view: View, height: int) -> None:
        if view.page != "allocations":
            return
        on_screen = {row.key for row in view.shown(height)}
        requests = 0
        for alloc in self._allocations:
            earlier = self._errors.get(alloc.id)
            if (alloc.namespace, alloc.id) not in on_screen or requests == _MOST_ERRORS:
                continue
            if earlier is not None and earlier.modify_index == alloc.modify_index:
                continue
            requests += 1
            path = f"/v1/allocation/{segment(alloc.id)}/error"
            error = self._client.fetch(path, LastError).error
            self._errors[alloc.id] = _Asked(alloc.modify_index, error.summary if error else "")

    def _poll_host(self) -> None:
        if not self._sees_host:
            return
        try:
            used = self._client.fetch("/v1/client/stats", HostStats)
        except RequestRejected as error:  # a token without node access still shows jobs
            self._sees_host = False
            self._hidden = _hidden_by(error)
            return
        busy = sum(processor_usage.total_percent for processor_usage in used.cpu) / max(
            1, len(used.cpu)
        )
        memory, disk = used.memory, used.alloc_dir_stats
        self._node = (
            f"steward top  CPU {busy:.0f}% of {len(used.cpu)}  "
            f"memory {memory.used // _MEGABYTE}/{memory.total // _MEGABYTE} MiB  "
            f"disk {disk.used_percent:.0f}%"
        )


def _hidden_by(error: RequestRejected) -> str:
    is_denied = error.is_denied
    return _HIDDEN + ("the token lacks node:read" if is_denied else str(error))


def _state_word(line: _AllocationLine) -> str:
    is_wanted = line.desired_status == DesiredStatus.RUN
    if not is_wanted and line.client_status in (ClientStatus.RUNNING, ClientStatus.PENDING):
        return "stopping"
    return line.client_status


def _state(line: _NodeLine) -> str:
    if line.status == NodeStatus.READY and line.drain:
        return "draining"
    if line.status == NodeStatus.READY and line.scheduling_eligibility != Eligibility.ELIGIBLE:
        return line.scheduling_eligibility
    return line.status


def _allocated_of(line: _NodeLine) -> str:
    allocated = line.held
    requested = f"{allocated.cpu} of {allocated.cpu_total} MHz, {allocated.memory_mb} of {allocated.memory_total_mb} MiB requested"
    return "; ".join(filter(None, (line.status_description, requested)))


@click.command()
@with_client
def top(client: ApiClient) -> None:
    """Watch jobs, allocations and the node: state, CPU, memory, restarts and the last error.

    Enter shows the allocations of a job, Tab all allocations, `o` the nodes and their pools. `l`
    shows logs, `e` runs a shell in a task, `w` explains, `x` stops. `/` filters; `t`, `c`, `m`, `r`
    and `n` sort by state, CPU, memory, restarts and name. `q` quits.

    Example: steward top
    """
    # For a live display, a late response is worse than no response.
    with (
        ApiClient(client.connection, answer_within=_ANSWER_WITHIN) as asking,
        opened(color=wants_color(None, os.environ)) as screen,
    ):
        try:
            _run(TopPoller(asking), View(), screen, asking.connection)
        except (KeyboardInterrupt, EOFError):
            return


def _run(watch: TopPoller, view: View, screen: FullScreen, connection: HttpConnection) -> None:
    due = time.monotonic()
    while True:
        now = time.monotonic()
        width, height = screen.size
        if now >= due:
            watch.poll(view, height, now)
            due = max(due + _EVERY, now)
        facts = watch.facts()
        view.arrange(facts, time.time_ns())
        screen.draw(view.lines(facts, width, height))
        key = screen.key(due - time.monotonic())
        if key == "suspend":
            screen.suspend()
        elif key:
            action = view.press(key, height)
            if action == "quit":
                return
            if action:
                _act(action, view, facts, screen, connection)


def _act(
    action: str, view: View, facts: TopFacts, screen: FullScreen, connection: HttpConnection
) -> None:
    """Leave full-screen mode, and run a command on the selected row."""
    words = command(action, view, facts)
    if not words:
        return
    with screen.suspended():
        status = _call(words, connection)
        if action != "exec":
            ended = "" if not status else f" (exit status {status})"
            click.echo(f"\nsteward {' '.join(words)}{ended}: press Enter to go back", err=True)
            try:
                sys.stdin.readline()
            except KeyboardInterrupt:
                return


def command(action: str, view: View, facts: TopFacts) -> list[str]:
    """Return the `steward` arguments that perform an action on the selected row.

    The list is empty if no row is selected.
    """
    row = view.selected
    if row is None:
        return []
    namespace, name = row.key
    if view.page == "nodes":
        return ["node", "status", name]
    where = ["--namespace", namespace]
    if view.page == "jobs":
        verbs: Mapping[str, list[str]] = {
            "logs": ["job", "logs", "-f"],
            "explain": ["job", "explain"],
            "stop": ["job", "stop", "--yes"],
        }
        return [*verbs[action], *where, name]
    if action == "explain":
        return ["alloc", "status", *where, name]
    if action == "exec":
        return ["alloc", "exec", *where, name, "/bin/sh"]
    return {"logs": ["alloc", "logs", "-f"], "stop": ["alloc", "stop"]}[action] + [*where, name]


def _call(words: list[str], connection: HttpConnection) -> int:
    """Run another `steward` command in this process; return its exit status."""
    root = click.get_current_context().find_root().command
    # The connection is passed in the environment, so that no secret is an argument.
    settings = {
        f"STEWARD_{variable}": str(getattr(connection, field))
        for field, variable in _VARIABLES.items()
        if getattr(connection, field)
    }
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        root.main(words, prog_name="steward")  # `main` always ends with an exception
    except ScreenEnded:
        raise
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        return 0
    finally:
        os.environ.clear()
        os.environ.update(before)


_VARIABLES = {
    "address": "ADDR",
    "token": "TOKEN",
    "region": "REGION",
    "http_auth": "HTTP_AUTH",
    "ca_cert": "CACERT",
    "ca_path": "CAPATH",
    "client_cert": "CLIENT_CERT",
    "client_key": "CLIENT_KEY",
    "tls_server_name": "TLS_SERVER_NAME",
    "tls_skip_verify": "SKIP_VERIFY",
}
