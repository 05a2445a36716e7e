"""What a launcher makes of messages, also of those that no correct daemon sends."""

import os
import random
import select
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.channel import (
    LONGEST,
    MOST_DESCRIPTORS,
    Wrong,
    close,
    pair,
    read_sealed,
    receive,
    sealed,
    send,
)
from daemon.launcher.messages import VERSION, Failed, Hello, Question, Start, Started, Welcome
from daemon.launcher.serve import LOCK
from tests import launchers
from tests.parts.launcher.conftest import ALLOCATION, Outputs, Talk

START = Start(allocation=ALLOCATION, task="main", attempt=0)
FUZZ = 2000  # messages; `bench/launcher_fuzz.py` sends 200,000


def test_launcher_greets_once(talk: Talk, tmp_path: Path) -> None:
    assert talk.greet(tmp_path).body == Welcome(is_root=os.geteuid() == 0)
    talk.send(2, 0, Hello(version=VERSION, directory=str(tmp_path)))
    assert talk.has_ended()


def test_launcher_ends_when_another_version_greets_it(talk: Talk, tmp_path: Path) -> None:
    talk.send(1, 0, Hello(version=VERSION + 1, directory=str(tmp_path)))
    assert talk.has_ended()


def test_nothing_is_answered_before_the_greeting(talk: Talk, outputs: Outputs) -> None:
    given = outputs.of("/bin/sh", "-c", "echo ran")
    talk.send(1, len(given), START, descriptors=given)
    assert talk.has_ended()
    assert outputs.out.read_text() == ""


def test_launcher_waits_for_the_one_before(tmp_path: Path) -> None:
    with launchers.begin() as first, launchers.begin() as second:
        one, two = Talk.__new__(Talk), Talk.__new__(Talk)
        one.channel, two.channel = first, second
        one.greet(tmp_path)
        two.send(1, 0, Hello(version=VERSION, directory=str(tmp_path)))
        os.close(first.detach())
        assert msgspec.msgpack.decode(receive(second)[0])[0] == 1
    assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o600


def test_started_process_gets_its_descriptors_and_a_session(
    greeted: Talk, outputs: Outputs
) -> None:
    text = "echo $ONE; echo $$ >&2; cut -d' ' -f6 </proc/$$/stat; echo err >&3; umask; pwd"
    given = outputs.of("/bin/sh", "-c", text, ONE="1")
    greeted.send(7, len(given), START, descriptors=given)
    data, (watched,) = receive(greeted.channel)
    reply = msgspec.msgpack.decode(data, type=msgspec.msgpack.Decoder(Any).type)
    select.select([watched], [], [])
    close([watched, given[0]])
    pid = reply[2][1]
    assert reply[:2] == [7, 1]
    assert outputs.claim.read_text() == f"{pid}\n"
    assert outputs.out.read_text().split() == ["1", str(pid), "err", "0077", "/"]


def test_ended_process_leaves_no_zombie(greeted: Talk, outputs: Outputs) -> None:
    given = outputs.of("/bin/true")
    answer = greeted.ask(START, *given)
    assert isinstance(answer.body, Started)
    while Path(f"/proc/{answer.body.pid}").exists():  # each question is a chance to tidy up
        os.sched_yield()
    close(given[:1])


@pytest.mark.parametrize(
    ("words", "number"),
    [(("/none/such",), 2), (("/bin/echo", "x" * 200_000), 7), (("/bin/echo", "a\0b"), 0)],
)
def test_refusal_of_the_machine_is_answered(
    greeted: Talk, outputs: Outputs, words: tuple[str, ...], number: int
) -> None:
    given = outputs.of(*words)
    answer = greeted.ask(START, *given)
    close(given[:1])
    assert isinstance(answer.body, Failed)
    assert answer.body.number == number
    assert greeted.ask(START, *outputs.of("/bin/true")).descriptors == 1


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [1],
        [1, 0],
        [1, 0, 5],
        [1, 0, []],
        [1, 0, [99]],
        [1, 0, [2, ALLOCATION, "main", 0, "more"]],
        [1, 0, [2, ALLOCATION, "main"]],
        [1, 0, [2, ALLOCATION, "main", -1]],
        [1, 0, [2, ALLOCATION, "main", 2**32]],
        [1, 0, [2, ALLOCATION, "main", 0]],  # without its descriptors
        [1, 4, [2, ALLOCATION, "main", 0]],
        [1, 9, [2, ALLOCATION, "main", 0]],
        [-1, 0, [2, ALLOCATION, "main", 0]],
        [1, 0, [2, ALLOCATION, "main", 0], "more"],
        *([1, 4, [2, ALLOCATION, name, 0]] for name in ("", ".", "..", "a/b", "a\0", "x" * 256)),
        *([1, 4, [2, name, "main", 0]] for name in ("", ".." * 18, "A" * 36, "a" * 35, "a" * 37)),
        [1, 4, [2, f"{'a' * 35}\n", "main", 0]],
        [1, 4, [2, f"{'a' * 36}\n", "main", 0]],
    ],
    ids=repr,
)
def test_wrong_message_ends_the_launcher(greeted: Talk, outputs: Outputs, fields: Any) -> None:
    given = outputs.of("/bin/sh", "-c", "echo ran")
    declared = fields[1:2] == [4]
    greeted.send(*fields, descriptors=given[: 4 if declared and fields[2][1] != ALLOCATION else 0])
    assert greeted.has_ended()
    assert outputs.out.read_text() == ""


@pytest.mark.parametrize("data", [b"\xc1", b"\x93\x01", b"\xff" * LONGEST, b"\x93" + b"\xd9\xff"])
def test_bytes_that_are_no_message_end_the_launcher(greeted: Talk, data: bytes) -> None:
    send(greeted.channel, data)
    assert greeted.has_ended()


def test_empty_message_ends_the_launcher(greeted: Talk) -> None:
    send(greeted.channel, b"")
    assert greeted.has_ended()


@pytest.mark.parametrize("number", [1, 3, 6, MOST_DESCRIPTORS, MOST_DESCRIPTORS + 1, 100])
def test_wrong_number_of_descriptors_ends_the_launcher(
    greeted: Talk, outputs: Outputs, number: int
) -> None:
    given = outputs.of("/bin/sh", "-c", "echo ran")
    passed = tuple(given[place % 4] for place in range(number))
    greeted.send(1, min(number, 8), START, descriptors=passed)
    assert greeted.has_ended()
    assert outputs.out.read_text() == ""


def test_payload_that_can_be_changed_ends_the_launcher(
    greeted: Talk, outputs: Outputs, tmp_path: Path
) -> None:
    content = os.pread(outputs.of("/bin/sh", "-c", "echo ran")[0], LONGEST, 0)
    (tmp_path / "payload").write_bytes(content)
    file = os.open(tmp_path / "payload", os.O_RDONLY)
    greeted.send(1, 4, START, descriptors=(file, *outputs.files))
    assert greeted.has_ended()
    os.close(file)
    assert outputs.out.read_text() == ""


def test_payload_of_another_form_ends_the_launcher(greeted: Talk, outputs: Outputs) -> None:
    greeted.send(1, 4, START, descriptors=(sealed(b"\xc1"), *outputs.files))
    assert greeted.has_ended()


def test_sealed_file_is_read_up_to_its_bound() -> None:
    descriptor = sealed(b"12345")
    assert read_sealed(descriptor, 5) == b"12345"
    with pytest.raises(Wrong):
        read_sealed(descriptor, 4)
    with pytest.raises(OSError, match="not permitted"):
        os.write(descriptor, b"6")
    os.close(descriptor)


def test_file_in_memory_without_all_seals_is_refused() -> None:
    descriptor = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    with pytest.raises(Wrong):
        read_sealed(descriptor, 100)
    os.close(descriptor)


def test_descriptors_of_a_refused_message_are_closed() -> None:
    ours, theirs = pair()
    with ours, theirs:
        before = sorted(os.listdir("/proc/self/fd"))
        send(ours, b"x", [0] * (MOST_DESCRIPTORS + 1))
        with pytest.raises(Wrong):
            receive(theirs)
        send(ours, b"", [0, 1])
        with pytest.raises(Wrong):
            receive(theirs)
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_launcher_keeps_no_descriptor_of_a_request(greeted: Talk, outputs: Outputs) -> None:
    def held() -> int:
        answer = greeted.ask(START, *outputs.of("/bin/sh", "-c", "ls /proc/$PPID/fd | wc -l"))
        assert isinstance(answer.body, Started)
        greeted.ask(START, *outputs.of("/bin/true"))
        while Path(f"/proc/{answer.body.pid}").exists():
            os.sched_yield()
        return int(outputs.out.read_text().split()[-1])

    first = held()
    for _ in range(20):
        greeted.ask(START, *outputs.of("/none"))
    assert held() == first


def test_random_messages_make_nothing_and_end_the_launcher(tmp_path: Path) -> None:
    assert fuzz(random.Random(26), tmp_path, FUZZ) > FUZZ // 2


def fuzz(chance: random.Random, directory: Path, number: int) -> int:
    """Send that many messages to launchers; return how many ended one.

    A launcher that was not ended is asked something that is right, and must answer.
    """
    ended, talk = 0, None
    before = {one for one in directory.rglob("*") if one.name != LOCK}
    for _ in range(number):
        if talk is None:
            talk = Talk()
            talk.greet(directory)
        data, descriptors = random_message(chance)
        send(talk.channel, data, descriptors)
        close(descriptors)
        select.select([talk.channel], [], [])
        if talk.has_ended():
            talk.channel.close()
            ended, talk = ended + 1, None
    if talk is not None:
        talk.channel.close()
    assert {one for one in directory.rglob("*") if one.name != LOCK} == before
    return ended


def random_message(chance: random.Random) -> tuple[bytes, list[int]]:
    """Return bytes that are random, or nearly a right message, with up to nine descriptors."""
    descriptors = [
        sealed(chance.randbytes(chance.randrange(40)))
        if chance.random() < 0.5
        else os.open("/dev/null", os.O_RDWR)
        for _ in range(chance.choice((0, 0, 0, 0, 1, 4, 5, 9)))
    ]
    question = Question(
        number=chance.randrange(2**32), descriptors=min(8, len(descriptors)), body=START
    )
    data = bytearray(msgspec.msgpack.encode(question))
    match chance.randrange(4):
        case 0:
            data = bytearray(chance.randbytes(chance.randrange(1, 200)))
        case 1:
            data = data[: chance.randrange(1, len(data))]
        case 2:
            data += chance.randbytes(chance.randrange(1, 9))
        case _:
            for _ in range(chance.randrange(4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data), descriptors
