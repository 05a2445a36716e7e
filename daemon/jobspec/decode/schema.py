"""Schemas: the arguments and blocks that a block can hold."""

from collections.abc import Callable, Mapping
from enum import Enum

import msgspec

from daemon.jobspec.decode.types import Kind, duration, flag, integer, text, texts, whole
from daemon.jobspec.hcl.scope import SourceRange
from daemon.jobspec.hcl.source import Diagnostic, SourceText
from daemon.jobspec.hcl.tree import Argument
from storage.records.base import wire_name
from storage.records.codec import Document


class FieldSpec(msgspec.Struct, frozen=True):
    """An argument: its name in the document, its type and its default.

    If the default is not null, the argument rejects null.
    """

    wire: str
    kind: Kind
    unset: object = None
    is_required: bool = False


class BlockForm(Enum):
    """Number of times that a block can appear in its body, and its form in the document."""

    ONE = "one"
    ONE_EACH = "one each"  # a list, with one block per label
    MANY = "many"  # a list
    BY_LABEL = "by label"  # a map


class ChildBlock(msgspec.Struct, frozen=True):
    """A nested block. `labels` names the fields that receive the block's labels."""

    wire: str
    shape: "BlockSchema"
    labels: tuple[str, ...] = ()
    form: BlockForm = BlockForm.ONE


class TextMap(msgspec.Struct, frozen=True):
    """A block with arbitrary names. Its values are strings, or values of `kind`."""

    wire: str
    may_be_argument: bool = False
    kind: Kind = text


class FreeForm(msgspec.Struct, frozen=True):
    """A block that only a driver or a plugin interprets."""

    wire: str


class DecodedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded block, for checks that a schema cannot express."""

    document: Document
    arguments: Mapping[str, Argument]
    source: SourceText
    block: SourceRange
    problems: list[Diagnostic]

    def object_to_block(self, summary: str, detail: str) -> None:
        """Record a problem of the block itself."""
        self._object(self.block, summary, detail)

    def object_to(self, argument: str, summary: str, detail: str) -> None:
        """Record a problem of an argument's value."""
        self._object(self.arguments[argument].value, summary, detail)

    def _object(self, source_range: SourceRange, summary: str, detail: str) -> None:
        self.problems.append(
            Diagnostic(
                summary=summary,
                detail=detail,
                source=self.source,
                start=source_range.start,
                end=source_range.end,
            )
        )


class BlockSchema:
    """The allowed contents of a block. Its document always contains the fields in `always`."""

    def __init__(
        self,
        fields: Mapping[str, FieldSpec] | None = None,
        blocks: Mapping[str, ChildBlock | TextMap | FreeForm] | None = None,
        always: Mapping[str, object] | None = None,
        finish: Callable[[DecodedBlock], None] | None = None,
    ) -> None:
        self.fields = fields or {}
        self.blocks = blocks or {}
        self.finish = finish
        self.arguments = frozenset(self.fields) | {
            name
            for name, block in self.blocks.items()
            if isinstance(block, TextMap) and block.may_be_argument
        }
        self.labels = {name: _label_count(block) for name, block in self.blocks.items()}
        self._empty: Document = {
            **(always or {}),
            **{field.wire: field.unset for field in self.fields.values()},
            **{block.wire: None for block in self.blocks.values()},
        }

    def empty(self) -> Document:
        """Return the document of an empty block."""
        return dict(self._empty)


def _label_count(block: ChildBlock | TextMap | FreeForm) -> int:
    return len(block.labels) if isinstance(block, ChildBlock) else 0


Fields = dict[str, FieldSpec]


def _fields(kind: Kind, unset: object, names: tuple[str, ...], renamed: dict[str, str]) -> Fields:
    wires = {**{name: wire_name(name) for name in names}, **renamed}
    return {name: FieldSpec(wire, kind, unset) for name, wire in wires.items()}


def optional_text(*names: str, **renamed: str) -> Fields:
    """Return the specifications of arguments whose values are text or null."""
    return _fields(text, None, names, renamed)


def plain_text(*names: str, **renamed: str) -> Fields:
    """Return the specifications of arguments whose values are strings, by default empty."""
    return _fields(text, "", names, renamed)


def optional_integer(*names: str, **renamed: str) -> Fields:
    """Return the specifications of arguments whose values are integers or null."""
    return _fields(integer, None, names, renamed)


def plain_integer(*names: str, **renamed: str) -> Fields:
    """Return the specifications of arguments whose values are integers, by default 0."""
    return _fields(integer, 0, names, renamed)


def optional_flag(*names: str, **renamed: str) -> Fields:
    """Return the specifications of arguments whose values are Boolean or null."""
    return _fields(flag, None, names, renamed)


def plain_flag(*names: str, **renamed: str) -> Fields:
    """Return the specifications of arguments whose values are Boolean, by default false."""
    return _fields(flag, False, names, renamed)


def optional_duration(*names: str, **renamed: str) -> Fields:
    """Return the specifications of arguments whose values are durations or null."""
    return _fields(duration, None, names, renamed)


def plain_duration(*names: str, **renamed: str) -> Fields:
    """Return the specifications of arguments whose values are durations, by default 0."""
    return _fields(duration, 0, names, renamed)


def text_list(*names: str, **renamed: str) -> Fields:
    """Return the specifications of arguments whose values are lists of strings or null."""
    return _fields(texts, None, names, renamed)


def in_range(least: int, most: int, unset: object, *names: str) -> Fields:
    """Return the specifications of integer arguments within a range, with the default `unset`."""
    return _fields(whole(least, most), unset, names, {})
