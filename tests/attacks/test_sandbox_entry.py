"""Root enters only sandboxes that root created, and no mount namespace created by a task."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.messages import (
    GetSessionExit,
    ProbeSandbox,
    ProcessStarted,
    RefusedReply,
    SandboxSupport,
    SessionExit,
    SessionOpened,
    StartSession,
    StartTask,
)
from tests.launchers import EVERYTHING
from tests.parts.launcher.conftest import ALLOCATION, Place, Talk, ordered, passed, place, talk
from tests.parts.runner.conftest import needs_root

__all__ = ["place", "talk"]
START = StartTask(allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=True)
SESSION = StartSession(allocation=ALLOCATION, task="main", attempt=0, is_terminal=False)
POLICY = msgspec.structs.replace(EVERYTHING, users=["nobody"], usual="nobody", permits_root=False)
# A task creates a mount namespace in which its own program replaces programs that root runs.
FALSE = """\
exec 2>&1
printf '#!/bin/sh\\nid -u >{open}/proof\\n' >{open}/tool && chmod 755 {open}/tool || exit
exec unshare -Urm sh -c 'for one in setpriv bwrap; do mount --bind {open}/tool /usr/bin/$one; done
echo ready; {wait}'
"""
ALONE = "exec sleep 600"
WITH_OTHERS = 'sh -c "sleep 600 & wait" & wait'  # the same number of processes as in the sandbox


@pytest.fixture
def open_place(place: Place) -> Iterator[Path]:
    """A world-writable directory; the task's directory belongs to `nobody`."""
    place.root.chmod(0o711)
    for name in ("main", "main/local", "main/secrets", "main/tmp", "alloc/data"):
        (place.root / name).mkdir(exist_ok=True)
        os.chown(place.root / name, 65534, 65534)
    found = Path(tempfile.mkdtemp())
    found.chmod(0o777)
    yield found
    shutil.rmtree(found)


def _attack(talk: Talk, place: Place, open_place: Path, wait: str, **order: Any) -> None:
    """Start a task that creates its own mount namespace, and run a command inside it.

    `wait` is the last command of the task.
    """
    text = FALSE.format(open=open_place if order["driver"] == "raw_exec" else "/tmp", wait=wait)  # noqa: S108  # as the task sees it
    answer = talk.ask(START, passed(ordered("/bin/sh", "-c", text, **order))).body
    assert isinstance(answer, ProcessStarted), answer
    try:
        while "ready" not in place.out.read_text():
            if not Path(f"/proc/{answer.pid}").exists():
                pytest.skip(f"tasks cannot create namespaces: {place.out.read_text()}")
            os.sched_yield()
        inside = ordered("/bin/true", **order | {"driver": "exec"})
        answered = talk.ask(SESSION, passed(inside)).body
        if isinstance(answered, SessionOpened):
            conclude = GetSessionExit(session=answered.session)
            while talk.ask(conclude).body == SessionExit(status=-1):
                os.sched_yield()
        else:
            assert isinstance(answered, RefusedReply)
    finally:
        if (listed := Path(f"/proc/{answer.pid}/task/{answer.pid}/children")).exists():
            for item in (*map(int, listed.read_text().split()), answer.pid):
                with suppress(ProcessLookupError):  # the process has ended with its parent
                    os.killpg(item, signal.SIGKILL)  # each process leads its own session


@needs_root
@pytest.mark.parametrize("wait", [ALONE, WITH_OTHERS])
def test_sandboxes_created_by_tasks_cannot_be_entered(
    talk: Talk, place: Place, open_place: Path, tmp_path: Path, wait: str
) -> None:
    talk.greet(tmp_path, POLICY)
    _attack(talk, place, open_place, wait, driver="raw_exec")
    assert not (open_place / "proof").exists()


@needs_root
def test_namespaces_of_a_task_do_not_mislead_exec_sessions(
    talk: Talk, place: Place, open_place: Path, tmp_path: Path
) -> None:
    talk.greet(tmp_path, POLICY)
    found = talk.ask(ProbeSandbox()).body
    if not isinstance(found, SandboxSupport) or found.walls:
        pytest.skip(f"exec: {found}")
    _attack(talk, place, open_place, ALONE, driver="exec", filter="off")
    proof = place.root / "main/tmp/proof"
    assert not proof.exists() or proof.read_text() != "0\n"
