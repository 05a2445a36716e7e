"""Forms of the API's objects: their fields, the request that they make, and errors at their fields.

The API validates all values. A rejected form is shown again with its values, and with the message
at the fields that the message names. A secret is never sent to a browser.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from daemon.ui.render import Found, render_page, status_of
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from storage.errors import Malformed, StewardError
from storage.records.base import SECOND

_IN_NANOSECONDS = frozenset(
    {"retry_delay", "max_retry_delay"}
)  # nanoseconds in responses of the API
_PEM = re.compile(r"(-----BEGIN [A-Z0-9 ]{1,40}-----[^-]*-----END [A-Z0-9 ]{1,40}-----)")
_UNITS = ((3600, "h"), (60, "m"), (1, "s"))


class FormField(NamedTuple):
    """A field of a form, with its name in the API.

    The kinds are `text`, `secret`, `seconds`, `number`, `flag`, `list`, `pairs`, `choice`, `pem`
    and `pems` (PEM blocks). If an `optional` field is empty, the API uses a default. An error
    message belongs to the field if it contains the field's name or one of the texts in `said`.
    """

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    choices: Sequence[str] = ()
    optional: bool = False
    required: bool = False
    said: Sequence[str] = ()


class FormSection(NamedTuple):
    """The fields below a heading.

    An error message that contains `subject`, but no name of a field, belongs to the first field.
    """

    heading: str
    fields: Sequence[FormField]
    subject: str = ""


Sections = Sequence[FormSection]


async def send_form(
    ui_request: UiRequest,
    send: Callable[[], Awaitable[object]],
    form: Callable[[Mapping[str, object]], Found],
    sections: Sections,
    target: str,
) -> HandlerReply:
    """Send a form to the API and redirect to `target`, or show the form again.

    `send` sends the form, and `form` returns the data of its page. The form is shown again if the
    API rejects it or responds with warnings.
    """
    try:
        answer = await send()
    except StewardError as error:
        status = status_of(error)
        if status not in (400, 422):
            raise
        errors = errors_at(str(error), sections, ui_request.form)
        context = {**form(_entered(ui_request, sections)), "errors": errors, "message": str(error)}
        return await render_page(ui_request, "login_form.html", context, status)
    warnings = (answer or {}).get("warnings") if isinstance(answer, dict) else None
    if warnings:
        context = {**form(_entered(ui_request, sections)), "warnings": warnings, "target": target}
        return await render_page(ui_request, "login_form.html", context)
    return HandlerReply(status=303, headers={"Location": target})


def errors_at(message: str, sections: Sections, values: Mapping[str, str]) -> dict[str, str]:
    """Return the message for each field that it concerns; empty if it concerns no field.

    A message concerns the fields that it names. If it names no field, it concerns the first field
    of a section whose subject it contains. Otherwise, it concerns the fields whose values it
    quotes.
    """
    fields = [field for section in sections for field in section.fields]
    words = set(re.findall(r"\w+", message))
    names = [
        field.name
        for field in fields
        if field.name in words or any(text in message for text in field.said)
    ]
    names = names or [
        field.name for field in fields if field.name.replace("_", " ") in message.lower()
    ]
    names = names or [
        section.fields[0].name
        for section in sections
        if section.subject and section.subject in message
    ]
    names = names or [
        field.name
        for field in fields
        if any(f'"{line}"' in message for line in _lines(values.get(field.name, "")))
    ]
    return dict.fromkeys(names, message)


def _lines(text_: str) -> list[str]:
    return [line.strip() for line in text_.splitlines() if line.strip()]


def _entered(ui_request: UiRequest, sections: Sections) -> dict[str, object]:
    """Return the values of a form as entered, without secrets."""
    return {
        field.name: bool(ui_request.form.get(field.name))
        if field.kind == "flag"
        else ui_request.form.get(field.name, "")
        for section in sections
        for field in section.fields
        if field.kind != "secret"
    }


def form_body(ui_request: UiRequest, sections: Sections) -> dict[str, object]:
    """Return the fields of a form as the API expects them. Raises `Malformed`."""
    body: dict[str, object] = {}
    for field in (field for section in sections for field in section.fields):
        entered = ui_request.form.get(field.name, "")
        if field.kind == "flag":
            body[field.name] = bool(entered)
        elif field.kind == "list":
            body[field.name] = _lines(entered)
        elif field.kind == "pems":
            body[field.name] = _pems(entered)
        elif field.kind == "pairs":
            body[field.name] = dict(_pairs(field.name, _lines(entered)))
        elif field.kind == "secret" or field.optional:
            if entered.strip():
                body[field.name] = entered.strip()
        elif field.kind in ("seconds", "number"):
            body[field.name] = entered.strip() or 0
        else:
            body[field.name] = entered.strip()
    return body


def _pems(entered: str) -> list[str]:
    """Return the PEM blocks of a text; other text becomes a block too, which the API rejects."""
    pieces = (block.strip() for block in _PEM.split(entered.replace("\r\n", "\n")))
    return [f"{block}\n" for block in pieces if block]


def _pairs(name: str, lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise Malformed(f"{name} has the line {line[:80]!r}: write each line as key=value")
        yield key.strip(), value.strip()


def form_values(config: Mapping[str, Any], sections: Sections) -> dict[str, object]:
    """Return the values of an object of the API as a form shows them."""
    values: dict[str, object] = {}
    for field in (field for section in sections for field in section.fields):
        value = config.get(field.name)
        if field.kind == "flag":
            values[field.name] = bool(value)
        elif field.kind in ("list", "pems"):
            values[field.name] = "\n".join(entry.strip() for entry in value or ())
        elif field.kind == "pairs":
            values[field.name] = "\n".join(f"{key}={entry}" for key, entry in (value or {}).items())
        elif field.kind == "seconds" and isinstance(value, str):
            values[field.name] = _without_zeros(value)
        elif field.kind == "seconds":
            values[field.name] = duration_text(field.name, int(value or 0))
        else:
            values[field.name] = "" if value is None else str(value)
    return values


def duration_text(name: str, value: int) -> str:
    """Return the duration of a field in its largest whole unit, such as `8h`; empty for 0."""
    seconds = value // SECOND if name in _IN_NANOSECONDS else value
    size, unit = next(unit for unit in _UNITS if seconds % unit[0] == 0)
    return f"{seconds // size}{unit}" if seconds else ""


def _without_zeros(text: str) -> str:
    """Return a duration without units that are 0, such as `8h` for `8h0m0s`."""
    short = text.removesuffix("0s") if text.endswith(("m0s", "h0s")) else text
    short = short.removesuffix("0m") if short.endswith("h0m") else short
    return "" if short == "0s" else short
