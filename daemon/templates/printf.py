"""Go's `printf` (pkg.go.dev/fmt) for template values. No I/O."""

import re
from collections.abc import Callable, Sequence

from daemon.templates.errors import StepBudget, TemplateError
from daemon.templates.values import format_value, type_name
from daemon.text.go_format import quote

_VERB = re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d*))?(.?)", re.DOTALL)
_WIDEST = 1000  # characters of a width or a precision
_DEFAULT_PRECISION = 6


def printf(budget: StepBudget, form: str, values: Sequence[object]) -> str:
    """Format values by a format string. Raises `TemplateError` if the result would be too large."""
    budget.make(len(form))
    left, pieces, position = list(values), [], 0
    for match in _VERB.finditer(form):
        pieces.append(form[position : match.start()])
        position = match.end()
        pieces.append(_filled(budget, match, left))
    pieces.append(form[position:])
    if left:
        extra = ", ".join(
            f"{type_name(operand)}={format_value(operand, budget)}" for operand in left
        )
        pieces.append(f"%!(EXTRA {extra})")
    budget.make(sum(map(len, pieces)))
    return "".join(pieces)


def _filled(budget: StepBudget, match: re.Match[str], arguments: list[object]) -> str:
    flags, width, precision, verb = match.groups()
    if verb == "%":
        return "%"
    if not verb:
        return "%!(NOVERB)"
    if not arguments:
        return f"%!{verb}(MISSING)"
    for size in (width, precision or ""):
        if len(size) > len(str(_WIDEST)) or int(size or 0) > _WIDEST:
            raise TemplateError(f"a width or precision is more than {_WIDEST}")
    value = arguments.pop(0)
    budget.spend()
    form = _FORMS.get(verb)
    body = form(budget, value, flags, precision) if form else None
    if body is None:
        return f"%!{verb}({type_name(value)}={format_value(value, budget)})"
    return _padded(body, flags, int(width or 0), is_number=isinstance(value, int | float))


def _padded(body: str, flags: str, width: int, *, is_number: bool) -> str:
    if "-" in flags:
        return body.ljust(width)
    if "0" in flags and is_number:
        return body.zfill(width)
    return body.rjust(width)


Form = Callable[[StepBudget, object, str, str | None], str | None]


def _as_it_is(budget: StepBudget, value: object, flags: str, precision: str | None) -> str:
    if isinstance(value, int) and "+" in flags and not isinstance(value, bool):
        return f"{value:+d}"
    if "#" in flags and isinstance(value, str):
        return quote(value)
    return "<nil>" if value is None else format_value(value, budget)


def _text(budget: StepBudget, value: object, flags: str, precision: str | None) -> str | None:
    if isinstance(value, bool | int | float) or value is None:
        return None
    text = format_value(value, budget)
    return text if precision is None else text[: int(precision or 0)]


def _quoted(budget: StepBudget, value: object, flags: str, precision: str | None) -> str | None:
    if isinstance(value, str):
        budget.make(4 * len(value))
        return quote(value)
    return None


def _format_bool(
    budget: StepBudget, value: object, flags: str, precision: str | None
) -> str | None:
    return format_value(value, budget) if isinstance(value, bool) else None


def _char(budget: StepBudget, value: object, flags: str, precision: str | None) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    is_one = 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000
    return chr(value) if is_one else "\ufffd"


def _type(budget: StepBudget, value: object, flags: str, precision: str | None) -> str:
    return type_name(value)


def _whole(base: str) -> Form:
    def form(budget: StepBudget, value: object, flags: str, precision: str | None) -> str | None:
        if isinstance(value, str) and base in "xX":
            budget.make(2 * len(value))
            return f"{value.encode(errors='replace').hex()}"
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        digits = format(abs(value), base).zfill(int(precision or 0))
        mark = {"x": "0x", "X": "0X", "o": "0", "b": "0b"}.get(base, "") if "#" in flags else ""
        return f"{_sign(value, flags)}{mark}{digits}"

    return form


def _decimal(verb: str) -> Form:
    def form(budget: StepBudget, value: object, flags: str, precision: str | None) -> str | None:
        if isinstance(value, bool) or not isinstance(value, float):
            return None
        if precision is None and verb in "gG":
            return f"{'+' if '+' in flags and value >= 0 else ''}{format_value(value, budget)}"
        decimals = _DEFAULT_PRECISION if precision is None else int(precision or 0)
        return f"{_sign(value, flags)}{abs(value):.{decimals}{verb}}"

    return form


def _sign(value: float, flags: str) -> str:
    if value < 0:
        return "-"
    return "+" if "+" in flags else " " if " " in flags else ""


_FORMS: dict[str, Form] = {
    "v": _as_it_is,
    "s": _text,
    "q": _quoted,
    "t": _format_bool,
    "c": _char,
    "T": _type,
    **{verb: _whole(verb) for verb in "dxXob"},
    **{verb: _decimal(verb) for verb in "fFeEgG"},
}
