"""Masking of the secrets of jobs in JSON. No I/O.

Only string values inside an object that belongs to a job are masked, with the secrets of this job.
So masking never changes the syntax, a key, a number, or an object of another job. An object belongs
to a job if it is the job itself, or if its `Namespace` and `JobID` identify the job. Everything
inside the object belongs to the same job.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from daemon.text.masking import LEAST, Matcher

JobKey = tuple[str, str]  # namespace and ID

_TOKEN = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*+:)?|[{}\[\]]', re.DOTALL)
_ID = b'ID"'  # the end of a key
_NAME = re.compile(rb'ID"\s*+:\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_CHILD = re.compile(
    r"/(?:dispatch|periodic)-"
)  # separates the parent's ID from the end of a child's ID
_NAMING = frozenset({b"Namespace", b"JobID", b"ID"})
# Of all objects with an ID, only jobs have one of these.
_OF_JOBS = frozenset({b"TaskGroups", b"JobSummary", b"GroupCountSum"})
# Clients use these fields of an object to find other objects, so they are not masked.
_NEEDED = frozenset(
    {
        *_NAMING,
        *(b"ParentID", b"EvalID", b"NodeID", b"DeploymentID", b"Type", b"Status"),
        *(b"NextAllocation", b"PreviousAllocation", b"FollowupEvalID"),
    }
)
# Objects whose keys the author of a job chooses.
_FREE = frozenset({b"Env", b"Meta", b"Config", b"VariableFlags", b"Attributes"})


class JobMaskView:
    """The form in which a caller sees the data of jobs.

    Filters and searches apply to this form, so that their results reveal nothing about the secrets.
    """

    def __init__(self, matchers: Mapping[JobKey, Matcher], job: JobKey | None) -> None:
        """`job` is the job that all documents are about, if there is one."""
        self._matchers, self._job = matchers, job

    def document(self, document: object) -> object:
        """Return a JSON document with the secrets of its jobs masked."""
        data = msgspec.json.encode(document)
        if not any(matcher.may_match(data) for matcher in self._relevant(data)):
            return document
        return msgspec.json.decode(mask_json(data, self._matchers, self._job))

    def _relevant(self, data: bytes) -> Iterator[Matcher]:
        """Yield the matchers of the jobs that a document may name."""
        yield from matched(self._job, self._matchers)
        owners = {owner for name in named_jobs(data) for owner in with_parents(name)}
        yield from (matcher for key, matcher in self._matchers.items() if key[1] in owners)

    def text(self, job: JobKey, text: str) -> str:
        """Return `text` with the secrets of the job masked."""
        for matcher in matched(job, self._matchers):
            text = matcher.mask_text(text)
        return text


class _Frame:
    """An object or a list: its key in its parent, its identifying fields, and its strings."""

    __slots__ = ("is_free", "is_job", "is_named", "job", "key", "names", "parent", "texts")

    def __init__(self, parent: "_Frame | None", key: bytes) -> None:
        self.parent, self.key = parent, key
        self.names: dict[bytes, bytes] = {}
        self.texts: list[tuple[int, int, bytes]] = []
        self.is_job = self.is_free = self.is_named = False
        self.job: JobKey | None = None

    def resolve(self) -> None:
        """Find the job of this frame. The job of its parent must already be known."""
        above = self.parent
        self.is_free = self.key in _FREE or (above is not None and above.is_free)
        names = self.names
        job_id = names.get(b"JobID") or (names.get(b"ID") if self.is_job else None)
        self.is_named = bool(job_id) and b"Namespace" in names and not self.is_free
        if above is not None and above.job is not None:
            self.job = above.job
        elif self.job is None and self.is_named and job_id:
            self.job = (_text(names[b"Namespace"]), _text(job_id))


def named_jobs(data: bytes) -> set[str]:
    """Return all values of `ID` and `JobID` in JSON. Each of them may be the ID of a job."""
    names: set[bytes] = set()
    # A search for bytes is fast. One pattern for all IDs would hold the GIL for 15 ms per MB.
    offset = data.find(_ID)
    while offset >= 0:
        is_key = data.endswith((b'"', b'"Job'), max(0, offset - 4), offset)
        if is_key and (match := _NAME.match(data, offset)):
            names.add(match[1])
        offset = data.find(_ID, offset + 1)
    return {_text(data) for data in names}


def with_parents(job_id: str) -> Iterator[str]:
    """Yield the ID of a job and the IDs of its parents, because a job also uses their secrets.

    >>> [*with_parents("a/periodic-1/dispatch-2")]
    ['a/periodic-1/dispatch-2', 'a', 'a/periodic-1']
    """
    yield job_id
    for match in _CHILD.finditer(job_id):
        yield job_id[: match.start()]


def matched(job: JobKey | None, matchers: Mapping[JobKey, Matcher]) -> list[Matcher]:
    """Return the matchers of a job and of its parents."""
    if job is None:
        return []
    keys = ((job[0], parent) for parent in with_parents(job[1]))
    return [matchers[key] for key in keys if key in matchers]


def mask_json(data: bytes, matchers: Mapping[JobKey, Matcher], job: JobKey | None = None) -> bytes:
    """Return JSON in which the strings of each job are masked with the matcher of this job.

    `job` is the job that the whole document is about. The data may be a sequence of documents, or
    some complete members of one object. The length stays the same, unless a mask would cut an
    escape sequence.
    """
    pieces: list[bytes] = []
    position = 0
    for begin, end, string_matchers in sorted(_texts(data, matchers, job)):
        pieces += (data[position:begin], _masked(data[begin:end], string_matchers))
        position = end
    return b"".join((*pieces, data[position:]))


def _texts(
    data: bytes, matchers: Mapping[JobKey, Matcher], job: JobKey | None
) -> Iterator[tuple[int, int, Sequence[Matcher]]]:
    """Yield the positions of the strings to mask, and their matchers."""
    matchers_by_job: dict[JobKey | None, list[Matcher]] = {}
    for frame in _frames(data, job):
        frame.resolve()
        if frame.job not in matchers_by_job:
            matchers_by_job[frame.job] = matched(frame.job, matchers)
        string_matchers = matchers_by_job[frame.job]
        for begin, end, key in frame.texts if string_matchers else ():
            if end - begin >= LEAST and not (frame.is_named and key in _NEEDED):
                yield begin, end, string_matchers


def _frames(data: bytes, job: JobKey | None) -> Collection[_Frame]:
    """Return the objects and lists in JSON, each after its parent."""
    current, key = _Frame(None, b""), b""
    current.job = job
    frames = [current]
    for token in _TOKEN.finditer(data):
        text = token[1]
        if text is None:
            if token[0] in b"{[":
                current = _Frame(current, key)
                frames.append(current)
            else:
                current = current.parent or current
            key = current.key
        elif token[2] is not None:
            key = text
            current.is_job |= text in _OF_JOBS
        else:
            current.texts.append((token.start(1), token.end(1), key))
            if key in _NAMING:
                current.names.setdefault(key, text)
    return frames


def _masked(raw: bytes, matchers: Sequence[Matcher]) -> bytes:
    """Return the contents of a JSON string with masks. The result is a valid JSON string."""
    masked = raw
    for matcher in matchers:
        masked = matcher.mask(masked)
    if masked == raw:
        return raw
    try:
        msgspec.json.decode(b'"' + masked + b'"', type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = _text(raw)  # a mask would cut an escape sequence, so the decoded text is masked
        for matcher in matchers:
            text = matcher.mask_text(text)
        return msgspec.json.encode(text)[1:-1]
    return masked


def _text(raw: bytes) -> str:
    """Return the text between the quotes of a JSON string."""
    try:
        return msgspec.json.decode(b'"' + raw + b'"', type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw.decode(errors="replace")
