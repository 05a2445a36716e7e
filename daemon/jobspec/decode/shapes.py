"""How a table says what a block may hold."""

from collections.abc import Callable, Mapping
from enum import Enum

import msgspec

from daemon.jobspec.decode.kinds import Kind, duration, flag, integer, text, texts, whole
from daemon.jobspec.hcl.scope import Placed
from daemon.jobspec.hcl.source import Diagnostic, Source
from daemon.jobspec.hcl.tree import Argument
from storage.records.base import wire_name
from storage.records.codec import Document


class Field(msgspec.Struct, frozen=True):
    """An argument: its name in the document, what it may be, and what stands there without it.

    Where something else than null stands there without it, null may not be written either.
    """

    wire: str
    kind: Kind
    unset: object = None
    is_required: bool = False


class Form(Enum):
    """How often a block may stand in its body, and what becomes of it."""

    ONE = "one"
    ONE_EACH = "one each"  # a list, with one block of each label
    MANY = "many"  # a list
    BY_LABEL = "by label"  # a map


class Child(msgspec.Struct, frozen=True):
    """A block; its labels become fields of the names given here."""

    wire: str
    shape: "Shape"
    labels: tuple[str, ...] = ()
    form: Form = Form.ONE


class TextMap(msgspec.Struct, frozen=True):
    """A block whose names are free and whose values are texts, or what `kind` says."""

    wire: str
    may_be_argument: bool = False
    kind: Kind = text


class FreeForm(msgspec.Struct, frozen=True):
    """A block of which nothing is known before a driver or a plugin reads it."""

    wire: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A block that has been decoded, for what a table cannot say."""

    document: Document
    arguments: Mapping[str, Argument]
    source: Source
    block: Placed
    problems: list[Diagnostic]

    def object_to_block(self, summary: str, detail: str) -> None:
        """Note that the block itself is wrong."""
        self._object(self.block, summary, detail)

    def object_to(self, argument: str, summary: str, detail: str) -> None:
        """Note that the value of an argument is wrong."""
        self._object(self.arguments[argument].value, summary, detail)

    def _object(self, place: Placed, summary: str, detail: str) -> None:
        self.problems.append(
            Diagnostic(
                summary=summary,
                detail=detail,
                source=self.source,
                start=place.start,
                end=place.end,
            )
        )


class Shape:
    """What a block may hold. `always` is in its document whatever the file says."""

    def __init__(
        self,
        fields: Mapping[str, Field] | None = None,
        blocks: Mapping[str, Child | TextMap | FreeForm] | None = None,
        always: Mapping[str, object] | None = None,
        finish: Callable[[Found], None] | None = None,
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
        """Return the document of a block without arguments and blocks."""
        return dict(self._empty)


def _label_count(block: Child | TextMap | FreeForm) -> int:
    return len(block.labels) if isinstance(block, Child) else 0


Fields = dict[str, Field]


def _fields(kind: Kind, unset: object, names: tuple[str, ...], renamed: dict[str, str]) -> Fields:
    wires = {**{name: wire_name(name) for name in names}, **renamed}
    return {name: Field(wire, kind, unset) for name, wire in wires.items()}


def optional_text(*names: str, **renamed: str) -> Fields:
    """Return arguments that are text or null."""
    return _fields(text, None, names, renamed)


def plain_text(*names: str, **renamed: str) -> Fields:
    """Return arguments that are text, and empty without one."""
    return _fields(text, "", names, renamed)


def optional_integer(*names: str, **renamed: str) -> Fields:
    """Return arguments that are whole numbers or null."""
    return _fields(integer, None, names, renamed)


def plain_integer(*names: str, **renamed: str) -> Fields:
    """Return arguments that are whole numbers, and 0 without one."""
    return _fields(integer, 0, names, renamed)


def optional_flag(*names: str, **renamed: str) -> Fields:
    """Return arguments that are truth values or null."""
    return _fields(flag, None, names, renamed)


def plain_flag(*names: str, **renamed: str) -> Fields:
    """Return arguments that are truth values, and false without one."""
    return _fields(flag, False, names, renamed)


def optional_duration(*names: str, **renamed: str) -> Fields:
    """Return arguments that are spans of time or null."""
    return _fields(duration, None, names, renamed)


def plain_duration(*names: str, **renamed: str) -> Fields:
    """Return arguments that are spans of time, and 0 without one."""
    return _fields(duration, 0, names, renamed)


def text_list(*names: str, **renamed: str) -> Fields:
    """Return arguments that are lists of texts or null."""
    return _fields(texts, None, names, renamed)


def in_range(least: int, most: int, unset: object, *names: str) -> Fields:
    """Return arguments that are whole numbers in a range."""
    return _fields(whole(least, most), unset, names, {})
