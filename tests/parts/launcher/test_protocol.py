"""Reactions of a launcher to messages, including those that no correct daemon sends."""

import errno
import fcntl
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.channel import (
    LONGEST,
    MOST_DESCRIPTORS,
    ProtocolViolation,
    pair,
    read_sealed,
    receive,
    sealed,
    send,
)
from daemon.launcher.messages import (
    MOST_OUTPUTS,
    VERSION,
    AlreadyStarted,
    EndedAttempt,
    FinishAttempt,
    Hello,
    HelloReply,
    NumberedReply,
    OperationFailed,
    ProcessStarted,
    ReadFile,
    RefusedReply,
    SendSignal,
    SignalResult,
    StartTask,
    WriteFile,
)
from daemon.launcher.server import LOCK, write_log
from tests import launchers
from tests.parts.launcher.conftest import ALLOCATION, Place, Talk, ordered, passed, payload, policed
from tests.parts.launcher.random_messages import fuzz, until_readable

START = StartTask(allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=True)
REST = [0, "-", True]  # the fields of a start request after its names
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
FUZZ = 2000  # messages; `bench/launcher_fuzz.py` sends 200,000


def test_launcher_sends_one_greeting(talk: Talk, tmp_path: Path) -> None:
    assert talk.greet(tmp_path).body == HelloReply(is_root=os.geteuid() == 0)
    talk.send(2, 1, Hello(version=VERSION, directory=str(tmp_path)), descriptors=(policed(),))
    assert talk.has_ended()


def test_greeting_of_another_version_stops_the_launcher(talk: Talk, tmp_path: Path) -> None:
    talk.send(1, 1, Hello(version=VERSION + 1, directory=str(tmp_path)), descriptors=(policed(),))
    assert talk.has_ended()


def test_request_before_the_greeting_is_not_answered(talk: Talk, place: Place) -> None:
    talk.send(1, 1, START, descriptors=(payload("/bin/true"),))
    assert talk.has_ended()
    assert place.is_untouched


def test_launcher_waits_for_its_predecessor(tmp_path: Path) -> None:
    with launchers.begin() as first, launchers.begin() as second:
        one, two = Talk.__new__(Talk), Talk.__new__(Talk)
        one.channel, two.channel = first, second
        one.greet(tmp_path)
        two.send(1, 1, Hello(version=VERSION, directory=str(tmp_path)), descriptors=(policed(),))
        os.close(first.detach())
        assert msgspec.msgpack.decode(receive(second)[0])[0] == 1
    assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o600


def started(talk: Talk, *words: str, number: int = 0, **env: str) -> int:
    """Return the process ID of the started program, when it has ended."""
    talk.send(
        7, 1, msgspec.structs.replace(START, attempt=number), descriptors=(payload(*words, **env),)
    )
    data, (watched,) = receive(talk.channel)
    reply = msgspec.msgpack.decode(data, type=NumberedReply)
    assert (reply.number, reply.descriptors) == (7, 1)
    assert isinstance(reply.body, ProcessStarted)
    until_readable(watched)
    os.close(watched)
    return reply.body.pid


def test_started_process_gets_its_descriptors_and_a_session(greeted: Talk, place: Place) -> None:
    text = "echo $$ $ONE; cut -d' ' -f6 </proc/$$/stat; umask; pwd; echo err >&2; ls -x /proc/$$/fd"
    pid = started(greeted, "/bin/sh", "-c", text, ONE="1")
    main, *printed = place.out.read_text().split()
    assert place.claim.read_text() == f"group -\nshim {pid}\nmain {main}\nexit 0\n"
    assert printed == ["1", main, "0022", str(place.root / "main"), "0", "1", "2"]
    assert place.err.read_text() == "err\n"
    modes = [path.stat().st_mode & 0o777 for path in (place.claim, place.out, place.err)]
    assert modes == [0o600, 0o644, 0o644]


def test_launcher_has_batch_scheduling_and_tasks_have_normal_scheduling(
    greeted: Talk, place: Place
) -> None:
    text = "cut -d' ' -f41 /proc/$$/stat /proc/$(cut -d' ' -f4 </proc/$PPID/stat)/stat"
    started(greeted, "/bin/sh", "-c", text)
    assert place.out.read_text().split() == [str(os.SCHED_OTHER), str(os.SCHED_BATCH)]


def test_started_attempt_is_not_started_again(greeted: Talk, place: Place) -> None:
    started(greeted, "/bin/echo", "once")
    assert greeted.ask(START, payload("/bin/echo", "twice")).body == AlreadyStarted()
    assert place.out.read_text() == "once\n"


def test_attempt_with_a_locked_claim_is_not_started(greeted: Talk, place: Place) -> None:
    with place.claim.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert greeted.ask(START, payload("/bin/true")).body == AlreadyStarted()


def test_attempt_without_a_shim_is_started(greeted: Talk, place: Place) -> None:
    place.claim.write_text("group old\nshim 12")
    started(greeted, "/bin/echo", "ran")
    assert place.claim.read_text().startswith("group -\nshim")
    assert place.out.read_text() == "ran\n"


def test_start_removes_the_claim_of_the_attempt_before(greeted: Talk, place: Place) -> None:
    place.claim.touch()
    started(greeted, "/bin/true", number=1)
    assert [path.name for path in place.root.glob(".claim.*")] == [".claim.main.1"]


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "directory"])
def test_log_that_is_no_regular_file_is_replaced(
    greeted: Talk, place: Place, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("")
    match kind:
        case "link":
            place.out.symlink_to(victim)
        case "dangling":
            place.out.symlink_to(tmp_path / "made")
        case "pipe":
            os.mkfifo(place.out)
        case _:
            place.out.mkdir()
            answer = greeted.ask(START, payload("/bin/echo", "ran"))
            assert isinstance(answer.body, OperationFailed)
            return
    started(greeted, "/bin/echo", "ran")
    assert place.out.read_text() == "ran\n"
    assert victim.read_text() == ""
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["", "alloc", "alloc/logs"])
def test_link_in_the_path_of_a_file_is_not_followed(
    greeted: Talk, place: Place, tmp_path: Path, name: str
) -> None:
    moved = (place.root / name).rename(tmp_path / "elsewhere")
    (place.root / name).symlink_to(moved)
    before = sorted(moved.rglob("*"))
    answer = greeted.ask(START, payload("/bin/echo", "ran"))
    assert isinstance(answer.body, OperationFailed)
    assert answer.body.number in {errno.ENOTDIR, errno.ELOOP}
    assert sorted(moved.rglob("*")) == before


def test_claim_that_is_a_link_is_not_followed(greeted: Talk, place: Place, tmp_path: Path) -> None:
    place.claim.symlink_to(tmp_path / "made")
    answer = greeted.ask(START, payload("/bin/true"))
    assert isinstance(answer.body, OperationFailed)
    assert answer.body.number == errno.ELOOP
    assert not (tmp_path / "made").exists()


def test_task_without_logs_writes_none(greeted: Talk, place: Place) -> None:
    silent = msgspec.structs.replace(START, is_logged=False)
    assert isinstance(greeted.ask(silent, payload("/bin/echo", "ran")).body, ProcessStarted)
    assert [*place.logs.iterdir()] == []


FINISH = FinishAttempt(allocation=ALLOCATION, task="main", attempt=0)
TERM = SendSignal(
    allocation=ALLOCATION,
    task="main",
    attempt=0,
    signal="SIGTERM",
    is_walled=False,
    to_shim=False,
)


def test_exit_is_reported_by_the_claim_and_by_the_status(greeted: Talk, place: Place) -> None:
    pid = started(greeted, "/bin/sh", "-c", "exit 7")
    text = place.claim.read_bytes()
    assert text.startswith(f"group -\nshim {pid}\n".encode())
    at = place.claim.stat().st_mtime_ns
    ended = EndedAttempt(claim=text, at=at, status=7, logs=(0, 0))
    assert greeted.ask(FINISH).body == ended
    told_once = msgspec.structs.replace(ended, status=-1)
    assert greeted.ask(FINISH).body == told_once


def test_sizes_of_logs_come_with_the_exit(greeted: Talk, place: Place) -> None:
    started(greeted, "/bin/sh", "-c", "echo out; echo error >&2")
    assert greeted.ask(FINISH).body.logs == (4, 6)


@pytest.mark.parametrize("replacement", ["ln -s /etc/passwd", "ln $PLACE/other", "mkdir"])
def test_sizes_of_replaced_logs_do_not_come_with_the_exit(
    greeted: Talk, place: Place, replacement: str
) -> None:
    (place.root / "other").write_text("text of another file")
    started(
        greeted,
        "/bin/sh",
        "-c",
        f"rm $LOG; {replacement} $LOG",
        LOG=str(place.out),
        PLACE=str(place.root),
    )
    assert greeted.ask(FINISH).body.logs is None


def outputs(most: int = MOST_OUTPUTS, path: str = "main/local/found") -> ReadFile:
    return ReadFile(allocation=ALLOCATION, task="main", path=path, most=most)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (outputs(), b"a=1\n"),
        (outputs(most=2), b"a="),
        (outputs(most=MOST_OUTPUTS + 1), None),
        (outputs(path="main/local/missing"), None),
        (outputs(path="main/local/link"), None),
        (None, None),
    ],
)
def test_short_outputs_come_with_the_exit(
    greeted: Talk, place: Place, tmp_path: Path, wanted: ReadFile | None, found: bytes | None
) -> None:
    (tmp_path / "outside").write_text("text of another file")
    text = 'mkdir -p local; echo a=1 >local/found; ln -s "$OUTSIDE" local/link'
    started(greeted, "/bin/sh", "-c", text, OUTSIDE=str(tmp_path / "outside"))
    end = greeted.ask(msgspec.structs.replace(FINISH, outputs=wanted)).body
    assert (end.outputs, end.status) == (found, 0)


def written(content: bytes, owner: tuple[int, int] | None = None) -> tuple[WriteFile, bytes]:
    path = "main/local/given"
    request = WriteFile(
        allocation=ALLOCATION, task="main", path=path, mode=0o600, is_new=False, owner=owner
    )
    return request, content


def given(*words: str, files: list[tuple[WriteFile, bytes]]) -> int:
    order = msgspec.structs.replace(ordered(*words), files=files)
    return sealed(msgspec.msgpack.encode(order))


def test_files_of_a_task_are_written_with_its_only_start(greeted: Talk, place: Place) -> None:
    text = "cat local/given; echo own >local/given"
    for content in (b"first\n", b"second\n"):
        order = given("/bin/sh", "-c", text, files=[written(content)])
        greeted.send(7, 1, START, descriptors=(order,))
        _, watched = receive(greeted.channel)
        for descriptor in watched:
            until_readable(descriptor)
            os.close(descriptor)
    assert place.out.read_text() == "first\n"
    assert (place.root / "main/local/given").read_text() == "own\n"


@needs_root
def test_files_of_a_start_belong_to_permitted_owners_only(talk: Talk, tmp_path: Path) -> None:
    talk.greet(tmp_path, msgspec.structs.replace(launchers.EVERYTHING, denied_uids=[(5, 5)]))
    place = Place(tmp_path)
    answer = talk.ask(START, given("/bin/true", files=[written(b"", (5, 5))])).body
    assert isinstance(answer, RefusedReply)
    assert not (place.root / "main/local/given").exists()


def test_status_remains_after_the_removal_of_claim_and_directory(
    greeted: Talk, place: Place, tmp_path: Path
) -> None:
    started(greeted, "/bin/sh", "-c", f"rm -r {place.root}; exit 7")
    assert greeted.ask(FINISH).body == EndedAttempt(claim=b"", at=0, status=7)
    nothing = EndedAttempt(claim=b"", at=0, status=-1)
    assert greeted.ask(msgspec.structs.replace(FINISH, attempt=1)).body == nothing


@needs_root
def test_full_disk_loses_no_status(talk: Talk, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    try:
        place = Place(tmp_path)
        talk.greet(tmp_path)
        text = "cat /dev/zero >$PLACE/fill 2>/dev/null; exit 7"
        started(talk, "/bin/sh", "-c", text, PLACE=str(place.root))
        assert place.claim.read_text().endswith("\nexit 7\n")
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def held(talk: Talk, place: Place) -> tuple[int, int]:
    """Start a shim whose task sleeps; return its process ID and pidfd when the task has begun."""
    talk.send(7, 1, START, descriptors=(payload("/bin/sleep", "600"),))
    data, (watched,) = receive(talk.channel)
    pid = msgspec.msgpack.decode(data, type=NumberedReply).body.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while not any(_command(child) == b"/bin/sleep" for child in children.read_text().split()):
        os.sched_yield()
    return pid, watched


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return b""


def ended(watched: int) -> None:
    until_readable(watched)
    os.close(watched)


def test_signal_reaches_the_main_process_and_not_the_shim(greeted: Talk, place: Place) -> None:
    pid, watched = held(greeted, place)
    assert greeted.ask(TERM).body == SignalResult(is_sent=True)
    ended(watched)
    lines = place.claim.read_text().splitlines()
    assert (lines[1], lines[-1]) == (f"shim {pid}", "exit 143")
    assert greeted.ask(TERM).body == SignalResult(is_sent=False)  # the task has ended


def test_signal_reaches_a_task_of_an_earlier_launcher(
    greeted: Talk, place: Place, tmp_path: Path
) -> None:
    _, watched = held(greeted, place)
    greeted.channel.close()
    talk = Talk()
    with talk.channel:
        talk.greet(tmp_path)
        assert talk.ask(TERM).body == SignalResult(is_sent=True)
        ended(watched)
        end = talk.ask(FINISH).body
    assert isinstance(end, EndedAttempt)
    assert end.claim.endswith(b"exit 143\n")
    assert end.status == -1


def test_shim_is_killed_only_without_a_task(greeted: Talk, place: Place) -> None:
    _, watched = held(greeted, place)
    kill = msgspec.structs.replace(TERM, signal="SIGKILL", to_shim=True)
    assert greeted.ask(kill).body == SignalResult(is_sent=False)
    greeted.ask(TERM)
    ended(watched)
    assert place.claim.read_text().endswith("exit 143\n")


def test_stopped_shim_is_resumed(greeted: Talk, place: Place) -> None:
    pid, watched = held(greeted, place)
    os.kill(pid, signal.SIGSTOP)
    greeted.ask(TERM)
    wake = msgspec.structs.replace(TERM, signal="SIGCONT", to_shim=True)
    assert greeted.ask(wake).body == SignalResult(is_sent=True)
    ended(watched)
    assert place.claim.read_text().endswith("exit 143\n")


@pytest.mark.parametrize("to_shim", [False, True])
def test_reused_process_number_is_not_signaled(greeted: Talk, place: Place, to_shim: bool) -> None:
    words = ["/bin/sh", "-c", "sleep 600 & echo; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as other:
        assert other.stdout is not None
        other.stdout.readline()  # its child has started
        place.claim.write_text(f"group -\nshim {other.pid}\n")
        for name in ("SIGKILL", "SIGCONT"):
            request = msgspec.structs.replace(TERM, signal=name, to_shim=to_shim)
            assert greeted.ask(request).body == SignalResult(is_sent=False)
        assert other.poll() is None
        os.killpg(other.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "to_shim"), [("SIGNONE", False), ("KILL", False), ("SIGSTOP", True), ("SIGTERM", True)]
)
def test_invalid_signal_is_refused(greeted: Talk, place: Place, name: str, to_shim: bool) -> None:
    _, watched = held(greeted, place)
    answer = greeted.ask(msgspec.structs.replace(TERM, signal=name, to_shim=to_shim)).body
    assert isinstance(answer, OperationFailed)
    assert name in answer.text
    greeted.ask(TERM)
    ended(watched)


def test_ended_process_leaves_no_zombie(greeted: Talk, place: Place) -> None:
    pid = started(greeted, "/bin/true")
    while Path(f"/proc/{pid}").exists():
        os.sched_yield()


@pytest.mark.parametrize(
    ("words", "number"),
    [(("/bin/echo", "x" * 200_000), 7), (("/bin/echo", "a\0b"), 0)],
)
def test_system_error_is_answered(
    greeted: Talk, place: Place, words: tuple[str, ...], number: int
) -> None:
    answer = greeted.ask(START, payload(*words))
    assert isinstance(answer.body, OperationFailed)
    assert answer.body.number == number
    assert started(greeted, "/bin/true")


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [1],
        [1, 0],
        [1, 0, 5],
        [1, 0, []],
        [1, 0, [99]],
        [1, 1, [2, ALLOCATION, "main", *REST, "more"]],
        [1, 1, [2, ALLOCATION, "main", 0, "-"]],
        [1, 1, [2, ALLOCATION, "main", -1, "-", True]],
        [1, 1, [2, ALLOCATION, "main", 2**32, "-", True]],
        [1, 1, [2, ALLOCATION, "main", 0, "a\nshim 1", True]],
        [1, 1, [2, ALLOCATION, "main", 0, "", True]],
        [1, 1, [2, ALLOCATION, "main", 0, "-", 1]],
        [1, 0, [2, ALLOCATION, "main", *REST]],
        [1, 2, [2, ALLOCATION, "main", *REST]],
        [1, 9, [2, ALLOCATION, "main", *REST]],
        [-1, 1, [2, ALLOCATION, "main", *REST]],
        [1, 1, [2, ALLOCATION, "main", *REST], "more"],
        [1, 1, [3, ALLOCATION, "main", 0, "SIGTERM", False, False]],
        [1, 0, [3, ALLOCATION, "main", 0, 15, False, False]],
        [1, 0, [3, ALLOCATION, "../x", 0, "SIGTERM", False, False]],
        [1, 0, [3, "..", "main", 0, "SIGTERM", False, False]],
        [1, 0, [3, ALLOCATION, "main", -1, "SIGTERM", False, False]],
        [1, 1, [4, ALLOCATION, "main", 0]],
        [1, 0, [4, ALLOCATION, "main", 2**32]],
        [1, 0, [4, ALLOCATION, "..", 0]],
        [1, 0, [4, ALLOCATION[:35], "main", 0]],
        *(
            [1, 1, [2, ALLOCATION, name, *REST]]
            for name in ("", ".", "..", "a/b", "a\0", "x" * 256)
        ),
        *(
            [1, 1, [2, name, "main", *REST]]
            for name in ("", ".." * 18, "A" * 36, "a" * 35, "a" * 37)
        ),
        [1, 1, [2, f"{'a' * 35}\n", "main", *REST]],
        [1, 1, [2, f"{'a' * 36}\n", "main", *REST]],
    ],
    ids=repr,
)
def test_invalid_message_stops_the_launcher(greeted: Talk, place: Place, fields: Any) -> None:
    greeted.send(*fields, descriptors=(payload("/bin/true"),) if fields[1:2] == [1] else ())
    assert greeted.has_ended()
    assert place.is_untouched


@pytest.mark.parametrize("data", [b"\xc1", b"\x93\x01", b"\xff" * LONGEST, b"\x93" + b"\xd9\xff"])
def test_bytes_without_a_message_stop_the_launcher(greeted: Talk, data: bytes) -> None:
    send(greeted.channel, data)
    assert greeted.has_ended()


def test_empty_message_stops_the_launcher(greeted: Talk) -> None:
    send(greeted.channel, b"")
    assert greeted.has_ended()


@pytest.mark.parametrize("number", [0, 2, 3, MOST_DESCRIPTORS, MOST_DESCRIPTORS + 1, 100])
def test_wrong_number_of_descriptors_stops_the_launcher(
    greeted: Talk, place: Place, number: int
) -> None:
    greeted.send(1, min(number, 8), START, descriptors=(payload("/bin/true"),) * number)
    assert greeted.has_ended()
    assert place.is_untouched


def test_mutable_payload_stops_the_launcher(greeted: Talk, place: Place, tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(os.pread(payload("/bin/true"), LONGEST, 0))
    with (tmp_path / "payload").open() as file:
        greeted.send(1, 1, START, descriptors=(file.fileno(),))
    assert greeted.has_ended()
    assert place.is_untouched


def test_malformed_payload_stops_the_launcher(greeted: Talk, place: Place) -> None:
    greeted.send(1, 1, START, descriptors=(sealed(b"\xc1"),))
    assert greeted.has_ended()
    assert place.is_untouched


def test_sealed_file_is_read_up_to_its_limit() -> None:
    descriptor = sealed(b"12345")
    assert read_sealed(descriptor, 5) == b"12345"
    with pytest.raises(ProtocolViolation):
        read_sealed(descriptor, 4)
    with pytest.raises(OSError, match="not permitted"):
        os.write(descriptor, b"6")
    os.close(descriptor)


def test_memory_file_without_all_seals_is_refused() -> None:
    descriptor = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    with pytest.raises(ProtocolViolation):
        read_sealed(descriptor, 100)
    os.close(descriptor)


def test_descriptors_of_a_refused_message_are_closed() -> None:
    ours, theirs = pair()
    with ours, theirs:
        before = sorted(os.listdir("/proc/self/fd"))
        send(ours, b"x", [0] * (MOST_DESCRIPTORS + 1))
        with pytest.raises(ProtocolViolation):
            receive(theirs)
        send(ours, b"", [0, 1])
        with pytest.raises(ProtocolViolation):
            receive(theirs)
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_launcher_closes_every_descriptor_of_a_request(
    greeted: Talk, place: Place, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = f"read go <{tmp_path}/pipe; ls /proc/$(cut -d' ' -f4 /proc/$PPID/stat)/fd | wc -l"
    refused = msgspec.structs.replace(START, attempt=7)

    def held(number: int) -> int:
        greeted.send(
            1,
            1,
            msgspec.structs.replace(START, attempt=number),
            descriptors=(payload("/bin/sh", "-c", text),),
        )
        _, (watched,) = receive(greeted.channel)
        greeted.ask(refused, payload("/none"))  # the first request is now finished
        (tmp_path / "pipe").write_text("go\n")
        until_readable(watched)
        os.close(watched)
        return int(place.out.read_text().split()[-1])

    first = held(0)
    for _ in range(20):
        greeted.ask(refused, payload("/none"))
    assert held(1) == first


def test_random_messages_have_no_effect_and_stop_the_launcher(tmp_path: Path) -> None:
    ended = fuzz(random.Random(26), tmp_path, FUZZ)
    assert FUZZ // 4 < ended < 3 * FUZZ // 4


def test_logged_text_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_log("volume 'a\nsteward: launcher: forged\r\x1b[2J\u2028\udc80' is none")
    assert capsys.readouterr().err == (
        "steward: launcher: volume 'a\\nsteward: launcher: forged\\r\\x1b[2J\\u2028\\udc80' is none\n"
    )


def test_exec_task_does_not_start_without_its_filter(
    talk: Talk, place: Place, tmp_path: Path
) -> None:
    talk.greet(tmp_path, msgspec.structs.replace(launchers.EVERYTHING, filter=b"no program"))
    order = ordered("/bin/true", driver="exec", user="nobody" if os.geteuid() == 0 else "")
    answer = talk.ask(START, passed(order)).body
    assert isinstance(answer, RefusedReply), answer
    if "sandbox" not in answer.text and "missing" not in answer.text:
        assert "does not allow a system call filter" in answer.text
    assert place.is_untouched
