"""Everything that the daemon and the launcher say to each other.

Arrays of MessagePack, each with its number first. A decoder refuses unknown numbers, further fields and
wrong types. Both sides are of one program, so there is one version of all this: `VERSION` only guards
against a mixture.
"""

from typing import Annotated, Literal

import msgspec

VERSION = 1
MOST_OPEN = 64  # requests without an answer
MOST_TEXT = 4096  # characters of a name or a path
MOST_PAYLOAD = (
    4 * 1024 * 1024
)  # bytes; the kernel takes half of that for a program's words and variables

Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Count = Annotated[int, msgspec.Meta(ge=0, le=8)]
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
Words = Annotated[list[bytes], msgspec.Meta(min_length=1)]
Line = Annotated[str, msgspec.Meta(pattern=r"\A[^\n\x00]{1,4096}\Z")]
ID = r"\A[0-9a-f-]{36}\Z"
Id = Annotated[str, msgspec.Meta(pattern=ID)]  # of an allocation
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_PAYLOAD)]
Rights = Annotated[int, msgspec.Meta(ge=0, le=0o777)]
Kind = Literal["token", "fetched"]  # of a note
Uid = Annotated[int, msgspec.Meta(ge=-1, lt=2**32 - 1)]
Owner = tuple[Uid, Uid]  # the numbers of a user and a group; -1 and -1: users that nobody knows
NAME = r"\A[^./\x00][^/\x00]{0,254}\Z"
Name = Annotated[str, msgspec.Meta(pattern=NAME)]  # of a task


class Message(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """What all messages are: closed arrays."""


# --- requests ---


class Hello(Message, frozen=True, kw_only=True, tag=1):
    """The first request, and only the first. `directory` is that of all allocations."""

    version: int
    directory: Text


class Start(Message, frozen=True, kw_only=True, tag=2):
    """Start the shim of an attempt, unless the attempt has begun.

    Descriptors: a sealed `Payload`, and what the filter of system calls is read from, where there is one.
    `group` is by what the task's processes are found again; without `is_logged` nothing is kept that the
    task prints.
    """

    allocation: Id
    task: Name
    attempt: Number
    group: Line
    is_logged: bool


class Signal(Message, frozen=True, kw_only=True, tag=3):
    """Send a signal, by its name, to the main process of an attempt, or to its shim.

    A shim is only ever told to go on, or killed when nothing lives below it. `is_walled` tells that walls
    stand between the two. Nobody is hit where the attempt has ended.
    """

    allocation: Id
    task: Name
    attempt: Number
    signal: Name
    is_walled: bool
    to_shim: bool


class Finish(Message, frozen=True, kw_only=True, tag=4):
    """Tell what is left of an attempt whose shim has ended. Its status is told once."""

    allocation: Id
    task: Name
    attempt: Number


class Payload(Message, frozen=True, kw_only=True):
    """What may be too long for a message: the words of the shim, and its variables."""

    words: Words
    env: dict[bytes, bytes]


class LayOut(Message, frozen=True, kw_only=True, tag=20):
    """Make the directories of an allocation, and take over the data of a previous one that has ended.

    Descriptor: a sealed `Layout`.
    """

    allocation: Id
    previous: Id | None


class Room(Message, frozen=True, kw_only=True):
    """The directory of a task. `owner` is its user, None ourselves; `is_seen` tells if it sees it."""

    task: Name
    owner: Owner | None
    is_seen: bool


class Layout(Message, frozen=True, kw_only=True):
    """The directories of the tasks, and a text about whose the logs are."""

    rooms: list[Room]
    about: bytes


class Write(Message, frozen=True, kw_only=True, tag=21):
    """Put a file where a task can reach it, with the folders above it.

    Descriptor: a sealed file with the content. `path` begins with the task's name, or with that of the
    shared directory. `is_new`: what is there stays. `owner` is whose it is to be, if not the task's user.
    """

    allocation: Id
    task: Name
    path: Text
    mode: Rights
    is_new: bool
    owner: Owner | None


class Read(Message, frozen=True, kw_only=True, tag=22):
    """Tell the facts about a file in such a place, and its first bytes, for a `most` other than 0."""

    allocation: Id
    task: Name
    path: Text
    most: Bytes


class Note(Message, frozen=True, kw_only=True, tag=23):
    """Keep a note about a task, or remove it."""

    allocation: Id
    task: Name
    kind: Kind
    text: Annotated[str, msgspec.Meta(max_length=1024)] | None


class Recall(Message, frozen=True, kw_only=True, tag=24):
    """Tell what such a note says."""

    allocation: Id
    task: Name
    kind: Kind


# --- answers ---


class Welcome(Message, frozen=True, kw_only=True, tag=1):
    """The answer to `Hello`."""

    is_root: bool


class Started(Message, frozen=True, kw_only=True, tag=2):
    """A process was started; its pidfd comes with the answer."""

    pid: Number


class Begun(Message, frozen=True, kw_only=True, tag=4):
    """There is a shim of the attempt already, or there was one."""


class Done(Message, frozen=True, kw_only=True, tag=5):
    """It was done, and there is nothing to say of it."""


class Ended(Message, frozen=True, kw_only=True, tag=6):
    """What is left of an attempt: the text of its claim, and when that was written, nanoseconds.

    `status` is the exit status of its shim, -1 where this launcher has not seen it end.
    """

    claim: bytes
    at: int
    status: int


class Failed(Message, frozen=True, kw_only=True, tag=3):
    """It could not be done: the error's number, and its text; 0: a value is no such value."""

    number: Number
    text: str


class LaidOut(Message, frozen=True, kw_only=True, tag=20):
    """The directories are there, but for those of these tasks."""

    troubles: dict[str, str]


class Found(Message, frozen=True, kw_only=True, tag=22):
    """The facts about a file; nanoseconds. What was read comes with the answer, in a sealed file."""

    inode: int
    size: int
    modified: int


class Said(Message, frozen=True, kw_only=True, tag=23):
    """The text of a note; None: there is none."""

    text: str | None


Request = Hello | Start | Signal | Finish | LayOut | Write | Read | Note | Recall
Answer = Welcome | Started | Begun | Done | Ended | Failed | LaidOut | Found | Said


class Question(Message, frozen=True, kw_only=True):
    """A request: its number, how many descriptors come with it, and what is asked."""

    number: Number
    descriptors: Count
    body: Request


class Reply(Message, frozen=True, kw_only=True):
    """The answer to the request of that number, and how many descriptors come with it."""

    number: Number
    descriptors: Count
    body: Answer
