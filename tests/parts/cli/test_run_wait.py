"""`job run -wait` and `-logs` against a fake daemon: exit statuses and output."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage.records.allocation import TaskEvent, TaskPhase, TaskStateWithEvents
from tests.parts.cli.conftest import FakeDaemon, Terminal, Told
from tests.parts.cli.test_commands import ALLOC, EVAL, OTHER, REGISTERED, evaluated, wire
from tests.samples import job
from tests.service.daemon import environment
from tests.time_limits import HAPPENS_WITHIN
from tests.unit.cli.samples import allocation_line

NEWER = "7ff3f0a1-7d6e-4bd5-8a0b-0d6c34b4a1f2"
LOGS = f"/v1/client/fs/logs/{ALLOC}"


def ended(exit_code: int) -> dict[str, TaskStateWithEvents]:
    event = TaskEvent(type="Terminated", time=1, exit_code=exit_code)
    state = TaskStateWithEvents(state=TaskPhase.DEAD, failed=bool(exit_code), events=[event])
    return {"main": state}


def line(alloc_id: str = ALLOC, **fields: Any) -> Any:
    return wire(allocation_line(alloc_id, **fields))


def failed(alloc_id: str = ALLOC, exit_code: int = 3, **fields: Any) -> Any:
    states = ended(exit_code)
    return line(alloc_id, client_status="failed", task_states=states, **fields)


def complete(**fields: Any) -> Any:
    return line(client_status="complete", task_states=ended(0), **fields)


@pytest.fixture(autouse=True)
def _registered(fake: FakeDaemon) -> None:
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    fake.tell(f"/v1/evaluation/{EVAL}", evaluated())
    fake.tell("/v1/job/web", wire(job("web", version=2, create_index=9)))


def run(terminal: Terminal, tmp_path: Path, *words: str, **fields: Any) -> Any:
    path = tmp_path / "web.json"
    path.write_text(json.dumps({"ID": "web", **fields}))
    return terminal.type("run", *words, str(path))


# ---- a job that is unchanged -------------------------------------------------------------------


def test_wait_for_an_unchanged_job_uses_its_existing_allocations(
    fake: FakeDaemon, terminal: Terminal, tmp_path: Path
) -> None:
    older = failed(OTHER, 4, job_version=1)
    purged = failed(NEWER, 5, job_version=2, create_index=8)
    fake.tell("/v1/job/web/allocations", [older, failed(job_version=2), purged])
    result = run(terminal, tmp_path, "--wait")
    assert (result.exit_code, result.stderr) == (3, "")
    assert 'job "web": allocations: 1 failed' in result.stdout


def test_wait_covers_running_allocations_of_an_unchanged_job_and_their_replacements(
    fake: FakeDaemon, terminal: Terminal, tmp_path: Path
) -> None:
    fake.tell(
        "/v1/job/web/allocations",
        [line(job_version=2)],
        [failed(job_version=2, followup_eval_id="e2")],
        [
            failed(job_version=2, next_allocation=OTHER),
            failed(OTHER, 4, job_version=2, create_index=12),
        ],
    )
    assert run(terminal, tmp_path, "--wait").exit_code == 4


def test_wait_for_an_unchanged_job_prints_only_allocations_without_a_replacement(
    fake: FakeDaemon, terminal: Terminal, tmp_path: Path
) -> None:
    replaced = failed(OTHER, job_version=2, next_allocation=ALLOC)
    fake.tell("/v1/job/web/allocations", [replaced, complete(job_version=2)])
    fake.tell(LOGS, Told(pieces=(b"hello\n",)))
    result = run(terminal, tmp_path, "--logs")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert fake.asked(f"/v1/client/fs/logs/{OTHER}") == []


@pytest.mark.parametrize("kind", ["Periodic", "ParameterizedJob", "parameterizedjob"])
@pytest.mark.parametrize("option", ["--wait", "--logs", "--timeout=1m"])
def test_a_job_that_only_launches_children_is_not_waited_for(
    fake: FakeDaemon, terminal: Terminal, tmp_path: Path, kind: str, option: str
) -> None:
    result = run(terminal, tmp_path, option, **{kind: {"Enabled": True}})
    assert result.exit_code == 1
    assert 'wait for a child with "steward job dispatch -wait"' in result.stderr
    assert fake.seen == []


# ---- output of the tasks ------------------------------------------------------------------------


def placed(**fields: Any) -> Any:
    return complete(eval_id=EVAL, **fields)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (Told(b"Permission denied", 403), "Permission denied"),
        (Told(pieces=(b"hel",), hang_up=True), "it closed the connection"),
    ],
)
def test_incomplete_logs_are_reported_once(
    fake: FakeDaemon, terminal: Terminal, tmp_path: Path, told: Told, reason: str
) -> None:
    fake.tell("/v1/job/web/allocations", [placed()])
    fake.tell(LOGS, told)
    result = run(terminal, tmp_path, "--logs")
    assert result.exit_code == 0
    warning, ending = result.stderr.splitlines()
    assert warning.startswith("the output of the tasks is incomplete: ")
    assert reason in warning
    assert ending == 'job "web": allocations: 1 complete'


def test_task_without_output_causes_no_error(
    fake: FakeDaemon, terminal: Terminal, tmp_path: Path
) -> None:
    fake.tell("/v1/job/web/allocations", [placed()])
    result = run(terminal, tmp_path, "--logs")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == 'job "web": allocations: 1 complete\n'
    assert fake.asked(LOGS)


def test_logs_into_a_closed_pipe_end_without_an_error(fake: FakeDaemon, tmp_path: Path) -> None:
    fake.tell("/v1/job/web/allocations", [placed()])
    fake.tell(LOGS, Told(pieces=(b"hello\n",)))
    path = tmp_path / "web.json"
    path.write_text('{"ID": "web"}')
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "daemon", "run", "-logs", str(path)],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(STEWARD_ADDR=fake.address),
            timeout=HAPPENS_WITHIN,
        )
    finally:
        os.close(writer)
    assert set(done.stderr.splitlines()) <= {b"hello"}  # the task prints to both streams
    assert done.returncode == 1
