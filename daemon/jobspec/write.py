"""Writer of job files that describe a complete job.

The schemas that decode blocks also drive the writer, so a new field needs no code here. The writer
omits defaults. It parses every text again before it returns it, so callers never get a text with
another meaning. Some jobs have no job file, because JSON can express more than the language.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from daemon.jobspec.canonicalize import canonicalize, same_definition
from daemon.jobspec.complete import complete
from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    FieldSpec,
    FreeForm,
    TextMap,
)
from daemon.jobspec.decode.tables.job import JOB
from daemon.jobspec.decode.types import duration
from daemon.jobspec.hcl.format import formatted
from daemon.jobspec.hcl.scope import FunctionEnvironment
from daemon.jobspec.hcl.source import HclError, SourceText
from daemon.jobspec.parse import FILE_NAME, JobFile, parse_job
from daemon.text.go_format import duration as span
from storage.errors import Invalid, Malformed
from storage.records.base import Record
from storage.records.codec import Document, JobDocument, decode, encode
from storage.records.job import Job, JobType

LARGEST = 1_000_000  # bytes of a job or its text: a larger one takes seconds to parse
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SPECIAL = re.compile(r'[\\"\x00-\x1f\x7f]|[$%]\{')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Names that a client resolves when the task starts. The language leaves them unchanged.
_AT_RUN_TIME = re.compile(r"\$\{(?:attr|node|meta|device|env|NOMAD_\w+)[\w.-]*\}")
_OPENING = re.compile(r"[$%]\{")
_PLAIN_LINES = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f]*\n")
# Lists whose elements have their own defaults, with the fields that these defaults depend on.
_WITH_DEFAULTS = frozenset(
    {
        *("TaskGroups", "Tasks", "Services", "Checks", "Templates", "Artifacts", "Networks"),
        *("VolumeMounts", "Affinities", "Spreads"),
    }
)
_TELLING = {
    **dict.fromkeys(("Name", "Driver", "PortLabel", "GetterSource", "Mode", "OnUpdate")),
    "Type": "service",
    "Provider": "consul",
    "GetterMode": "any",
}
_NOTHING_LESS = re.compile(r"(?<=[hm])0[ms]$")


class _Submitted(Record, frozen=True, kw_only=True):
    """A job as clients submit it."""

    job: JobDocument


def write_job(job: Job) -> str | None:
    """Return a job file for a job; None if the language cannot express it."""
    document: Document = msgspec.to_builtins(job)
    if len(encode(document)) > LARGEST:
        return None
    _prepare(document)
    for defaults in (_defaults(document), {}):
        source = _text(document, defaults)
        if source is not None and _describes(source, job):
            return source
    return None


def _text(job: Document, document: Document) -> str | None:
    lines = "\n".join(_block("job", [job["ID"]], JOB, job, document))
    if len(lines) > LARGEST:
        return None
    try:
        return formatted(SourceText(FILE_NAME, f"{lines}\n"))
    except HclError:  # a name that no label can have
        return None


def _describes(source: str, job: Job) -> bool:
    """Return whether a job file parses to this job."""
    meaning = _meaning(source)
    return meaning is not None and same_definition(meaning, _as_submitted(job))


def _meaning(source: str) -> Job | None:
    """Return the complete job that a job file describes; None if the file has errors."""
    try:
        parsed = parse_job(JobFile(text=source), FunctionEnvironment(random=bytes))
        document = decode(_Submitted, encode({"Job": complete(parsed)})).job
        return canonicalize(document)
    except (HclError, Malformed, Invalid, msgspec.MsgspecError):
        return None


def _as_submitted(job: Job) -> Job:
    """Return a job without the fields that only the daemon sets."""
    return msgspec.structs.replace(
        job, stop=False, parent_id="", dispatched=False, dispatch_idempotency_token="", payload=None
    )


# --- reversal of the schemas ---


def _prepare(job: Document) -> None:
    """Revert, in place, the changes that schemas make after decoding a block."""
    if not job["Update"]:
        # Rolling updates are the default of these types.
        by_default = job["Type"] in (JobType.SERVICE, JobType.SYSTEM)
        job["Update"] = {"MaxParallel": 0} if by_default else None
    if job["Name"] == job["ID"]:
        job["Name"] = None
    for group in job["TaskGroups"] or ():
        _prepare_networks(group)
        for task in group["Tasks"] or ():
            _prepare_task(task)


def _prepare_task(task: Document) -> None:
    own = task.pop("Identity", None)
    task["Identities"] = [*([own] if own else ()), *(task.get("Identities") or ())]
    for policy in task.get("ScalingPolicies") or ():
        policy["label"] = (policy.pop("Type") or "").removeprefix("vertical_")
    if task.get("Resources"):
        _prepare_networks(task["Resources"])


def _prepare_networks(owner: Document) -> None:
    for network in owner.get("Networks") or ():
        ports = [*(network.pop("ReservedPorts", None) or ()), *(network.get("DynamicPorts") or ())]
        network["DynamicPorts"] = ports


# --- defaults ---


def _defaults(document: Document) -> Document:
    """Return a minimal job with the same groups, tasks and services."""
    source = _text({**_required_fields(JOB, document), "ID": document["ID"]}, {})
    meaning = _meaning(source) if source is not None else None
    if meaning is None:
        return {}
    defaults: Document = msgspec.to_builtins(meaning)
    _prepare(defaults)
    _inherit(defaults, document)
    return defaults


def _inherit(document: Document, job: Document) -> None:
    """Copy the values that groups and tasks of `job` inherit into the defaults in `document`."""
    # Only this part of the job's update block remains (`canonicalize`).
    around = {name: (job["Update"] or {}).get(name) for name in ("Stagger", "MaxParallel")}
    inherited = {name: value for name, value in around.items() if value is not None}
    for written, group in zip(document["TaskGroups"] or (), job["TaskGroups"] or (), strict=False):
        if written["Update"]:
            written["Update"] = {**written["Update"], **inherited}
        for task in written["Tasks"] or ():
            task["RestartPolicy"] = group["RestartPolicy"]


def _required_fields(shape: BlockSchema, document: Document) -> Document:
    required = {
        field.wire: document[field.wire]
        for field in shape.fields.values()
        if (field.is_required or field.wire in _TELLING) and document.get(field.wire) is not None
    }
    for child in shape.blocks.values():
        value = document.get(child.wire)
        if isinstance(child, ChildBlock) and child.wire in _WITH_DEFAULTS and value:
            required[child.wire] = [_bare_element(child, element) for element in value]
    return required


def _bare_element(child: ChildBlock, document: Document) -> Document:
    # Some documents omit empty labels.
    labels = {name: document.get(name, "") for name in child.labels}
    return {**_required_fields(child.shape, document), **labels}


# --- blocks ---


def _block(
    kind: str, labels: Iterable[str], shape: BlockSchema, document: Document, defaults: Document
) -> Iterator[str]:
    yield " ".join([kind, *map(_quoted, labels), "{"])
    fields = list(_fields(shape, document, defaults))
    yield from fields
    is_first = not fields
    for name, child in shape.blocks.items():
        value = document.get(child.wire)
        if value is None or (
            child.wire not in _WITH_DEFAULTS and value == defaults.get(child.wire)
        ):
            continue
        lines = list(_child(name, child, value, defaults.get(child.wire)))
        if lines:
            yield from lines if is_first else ("", *lines)
            is_first = False
    yield "}"


def _fields(shape: BlockSchema, document: Document, defaults: Document) -> Iterator[str]:
    for name, field in shape.fields.items():
        value = document.get(field.wire)
        if value is None or (shape is JOB and name == "id"):
            continue
        default = _TELLING[field.wire] if field.wire in _TELLING else defaults.get(field.wire)
        if field.is_required or value not in (field.unset, default):
            yield f"{name} = {_shown(field, value)}"


def _shown(field: FieldSpec, value: Any) -> str:  # noqa: ANN401  # JSON
    return f'"{_span(value)}"' if field.kind is duration else _value(value)


def _span(nanoseconds: int) -> str:
    """Return a duration in short form: `5m` for `5m0s`."""
    return _NOTHING_LESS.sub("", _NOTHING_LESS.sub("", span(nanoseconds)))


def _child(
    name: str,
    child: ChildBlock | TextMap | FreeForm,
    value: Any,  # noqa: ANN401  # JSON
    defaults: Any,  # noqa: ANN401  # JSON
) -> Iterator[str]:
    if isinstance(child, TextMap):
        yield from _text_map(name, child, value)
    elif isinstance(child, FreeForm):
        if value:
            yield f"{name} {{"
            yield from _free_form(value)
            yield "}"
    elif child.form is BlockForm.ONE:
        yield from _block(
            name, (), child.shape, value, defaults if isinstance(defaults, dict) else {}
        )
    elif child.form is BlockForm.BY_LABEL:
        for label, body in value.items():
            yield from _block(name, [label], child.shape, body, {})
    else:
        yield from _list(name, child, value, defaults or [])


def _list(
    name: str, child: ChildBlock, values: list[Document], documents: list[Document]
) -> Iterator[str]:
    has_defaults = child.wire in _WITH_DEFAULTS and len(documents) == len(values)
    for index, document in enumerate(values):
        if index:
            yield ""
        labels = [document.get(label, "") for label in child.labels]
        beside = documents[index] if has_defaults else {}
        yield from _block(name, labels, child.shape, document, beside)


def _text_map(name: str, child: TextMap, value: Mapping[str, object]) -> Iterator[str]:
    if not value:
        return
    is_argument = child.may_be_argument and not all(map(_IDENTIFIER.fullmatch, value))
    yield f"{name} {'= ' if is_argument else ''}{{"
    for key, member in value.items():
        yield f"{_quoted(key) if is_argument else key} = {_value(member)}"
    yield "}"


def _free_form(document: Document) -> Iterator[str]:
    """Yield a driver's configuration.

    Lists of maps are written as blocks. A single map is written as a call of `merge`.
    """
    for name, value in document.items():
        if isinstance(value, dict):
            yield f"{name} = merge({_value(value)})"
        elif _are_blocks(value):
            for block_document in value:
                yield f"{name} {{"
                yield from _free_form(block_document)
                yield "}"
        else:
            yield f"{name} = {_value(value)}"


def _are_blocks(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(element, dict)
            and all(map(_IDENTIFIER.fullmatch, element))
            and not any(isinstance(inner, dict) for inner in element.values())
            for element in value
        )
    )


# --- values ---


def _value(value: object) -> str:
    match value:
        case str():
            return _heredoc(value) or _quoted(value)
        case list():
            return f"[{', '.join(map(_inner, value))}]"
        case dict():
            pairs = (f"{_quoted(key)} = {_inner(member)}" for key, member in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case _:
            return json.dumps(value)


def _inner(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else _value(value)


def _heredoc(text: str) -> str | None:
    """Return lines of text as a heredoc; None for other text."""
    lines = text.splitlines()
    if (
        len(lines) < 2
        or not text.endswith("\n")
        or not all(map(_PLAIN_LINES.fullmatch, text.splitlines(keepends=True)))
    ):
        return None
    mark = "EOF"
    while any(line.strip() == mark for line in lines):
        mark += "_"
    return f"<<{mark}\n{_escaped(text, _OPENING)}{mark}"


def _quoted(text: str) -> str:
    return f'"{_escaped(text, _SPECIAL)}"'


def _escaped(text: str, special: re.Pattern[str]) -> str:
    """Return a text with each match of `special` escaped, except in runtime references."""
    parts, position = [], 0
    for match in _AT_RUN_TIME.finditer(text):
        before = text[position : match.start()]
        # A preceding sign would double the opening and escape a runtime reference.
        is_open = not before.endswith("$")
        parts.append(special.sub(_escape, before))
        parts.append(match[0] if is_open else special.sub(_escape, match[0]))
        position = match.end()
    return "".join([*parts, special.sub(_escape, text[position:])])


def _escape(match: re.Match[str]) -> str:
    sign = match[0]
    if sign in ("${", "%{"):
        return f"{sign[0]}{sign}"
    return _ESCAPES.get(sign) or f"\\u{ord(sign):04x}"
