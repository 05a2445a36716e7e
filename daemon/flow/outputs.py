"""Outputs of steps: the references to them, and their values as other steps see them.

A task refers to an output of an earlier step as `${output.STEP.NAME}`. A step with elements has a
list of values by index, as JSON; `${output.STEP[3].NAME}` is the value of one element.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from urllib.parse import unquote

from daemon.flow.lists import REFERENCE, Reference, has_list
from daemon.jobspec.steward_meta.step_keys import KEEP, OUTPUTS
from daemon.text.go_format import quote
from storage.records.codec import encode
from storage.records.flow import StepOutputs
from storage.records.group import TaskGroup
from storage.records.task import Template

MAX_FILE = 64 * 1024  # bytes that an allocation writes
MAX_STEP = 1024 * 1024  # bytes that a step writes
MAX_RUN = 8 * 1024 * 1024
MAX_VALUES = 200_000  # values in lists: the output names of a step times its elements
FAULT = ""  # key for the reason why the outputs of a step cannot be read
_PREFIX = b"${output."
_IN_TEMPLATE = re.compile(
    r'\boutput\s+"([A-Za-z0-9_-]{1,128})"\s+"([A-Za-z_][A-Za-z0-9_]{0,127})"(?:\s+([0-9]{1,5}))?'
)
_KEPT = "kept://"  # the source of an artifact that an earlier step left


class TooManyValues(Exception):
    """Lists of outputs have too many values; the message has the numbers."""


def may_refer(group: TaskGroup) -> bool:
    """Return whether a group may contain a reference to an output."""
    return _PREFIX in encode(group)


def kept_sources(group: TaskGroup) -> list[str]:
    """Return the sources of those artifacts that are files kept by other steps."""
    return [
        artifact.getter_source
        for task in group.tasks or ()
        for artifact in task.artifacts or ()
        if artifact.getter_source.startswith(_KEPT)
    ]


def references(group: TaskGroup) -> tuple[Reference, ...]:
    """Return the references in a group without duplicates, in the order of their first use."""
    document = encode(group)
    if _PREFIX not in document:
        return ()
    names = dict.fromkeys(REFERENCE.findall(document.decode()))
    return tuple(
        Reference(step, name, int(element) if element else None) for step, element, name in names
    )


def template_references(group: TaskGroup) -> tuple[Reference, ...]:
    """Return the outputs that templates refer to with `output "STEP" "NAME"`, each once."""
    texts = (
        text
        for task in group.tasks or ()
        for template in task.templates or ()
        if "output" in template.embedded_tmpl
        for text in _actions(template)
    )
    return tuple(
        dict.fromkeys(
            Reference(step, name, int(element) if element else None)
            for text in texts
            for step, name, element in _IN_TEMPLATE.findall(text)
        )
    )


def _actions(template: Template) -> Iterator[str]:
    """Yield the texts between the delimiters of a template."""
    text, position = template.embedded_tmpl, 0
    left, right = template.left_delim, template.right_delim
    while left and right and (begin := text.find(left, position)) >= 0:
        begin += len(left)
        if (position := text.find(right, begin)) < 0:
            return
        yield text[begin:position]


def value(
    reference: Reference, step_outputs: Iterable[StepOutputs], *, total: int, is_list: bool
) -> str:
    """Return the value of a reference as text; empty if the output was not written.

    `step_outputs` are the outputs of the step, which has `total` elements. With `is_list`, the
    value of an output is a JSON list with the values of all elements.
    """
    texts = {
        row.element: row.outputs[reference.name]
        for row in step_outputs
        if reference.name in row.outputs
    }
    if reference.element is not None:
        return texts.get(reference.element, "")
    if not is_list:
        return texts.get(0, "")
    return encode([texts.get(index) for index in range(total)]).decode()


def by_name(
    step_outputs: Iterable[StepOutputs], *, total: int, is_list: bool
) -> dict[str, str | list[str | None]]:
    """Return all outputs of a step by name: each a text, or a list with the text of each element.

    A list has null for an element that did not write the output. Raises `TooManyValues`.
    """
    if not is_list:
        return {name: text for result in step_outputs for name, text in result.outputs.items()}
    lists: dict[str, list[str | None]] = {}
    for result in step_outputs:
        if result.element >= total:
            continue
        for name, text in result.outputs.items():
            if name not in lists:
                check_number(total * (len(lists) + 1))
                lists[name] = [None] * total
            lists[name][result.element] = text
    return dict(lists)


def check_number(values: int) -> None:
    """Raise `TooManyValues` if the number of values in lists exceeds the limit."""
    if values > MAX_VALUES:
        raise TooManyValues(
            f"the steps that it needs have more than {MAX_VALUES} output values "
            "(for each step, the number of outputs times the number of elements)"
        )


def texts(step_outputs: Iterable[StepOutputs], *, total: int, is_list: bool) -> dict[str, str]:
    """Return all outputs of a step as texts; lists are JSON. Raises `TooManyValues`."""
    texts_by_name = by_name(step_outputs, total=total, is_list=is_list)
    return {
        name: text if isinstance(text, str) else encode(text).decode()
        for name, text in texts_by_name.items()
    }


def problems(
    groups: Iterable[TaskGroup],
    before: Mapping[str, Collection[str]],
    own: Mapping[str, Collection[str]] = {},
) -> Iterator[str]:
    """Yield the errors of references; `before` maps steps to the steps that come before them.

    `own` maps steps to the earlier steps whose elements they await one by one. From such an earlier
    step, an element can only read the outputs of the element with the same index.
    """
    by_name = {task_group.name: task_group for task_group in groups}
    for name, earlier in before.items():
        group = by_name[name]
        for reference in dict.fromkeys((*references(group), *template_references(group))):
            prefix = f"Task group {name} refers to output {quote(str(reference))}"
            if reference.step not in earlier:
                yield f"{prefix}, but {reference.step} does not come before it"
                continue
            source = by_name[reference.step]
            declared = OUTPUTS.of(source.meta)
            if declared and reference.name not in declared:
                yield f"{prefix}, but {reference.step} declares only: {', '.join(declared)}"
            if reference.element is not None and reference.step in own.get(name, ()):
                yield (
                    f"{prefix}, but its elements wait only for the same element of {reference.step}: "
                    f"write {reference.step}.{reference.name}"
                )
            elif (
                reference.element is not None
                and not has_list(source)
                and reference.element >= source.count
            ):
                yield f"{prefix}, but {reference.step} has {source.count} elements"
        yield from _kept_problems(by_name, name, earlier)


def _kept_problems(
    by_name: Mapping[str, TaskGroup], name: str, earlier: Collection[str]
) -> Iterator[str]:
    """Yield the errors of those artifacts of a group that are files kept by other steps.

    `earlier` are the steps that come before the group.
    """
    for address in kept_sources(by_name[name]):
        if "${" in address:  # known only when the task begins
            continue
        step = unquote(address.removeprefix(_KEPT).partition("/")[0])
        prefix = f"Task group {name} has the artifact {quote(address)}"
        if step not in earlier:
            yield f"{prefix}, but {step or 'no step'} does not come before it"
        elif not any(_keeps(by_name[step])):
            yield f"{prefix}, but {step} keeps no files: it needs {quote(KEEP.name)}"


def _keeps(group: TaskGroup) -> Iterator[bool]:
    """Yield whether the group itself keeps files, and then whether each of its tasks does."""
    yield bool(KEEP.of(group.meta))
    for task in group.tasks or ():
        yield bool(KEEP.of(task.meta))
