"""Log lines for display: colors as class names, and no active content. No I/O.

Only colors and weights are taken from escape sequences. All other sequences are dropped. Other
control characters, and those that change the direction of text, are shown as symbols.
"""

import re

import msgspec

from daemon.text.control_characters import visible

_SEQUENCE = re.compile(
    r"\x1b\[([0-9;:]{0,64})m"  # colors and weights
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # titles, links and other strings
    r"|\x1b[ -/]*[0-~]?"
)
_MOST_PIECES = 400  # colored pieces of a line; the remaining text has no colors
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_WEIGHTS = {1: "bold", 2: "faint", 3: "italic", 4: "underline", 7: "inverse", 9: "struck"}
_ENDS = {
    22: ("bold", "faint"),
    23: ("italic",),
    24: ("underline",),
    27: ("inverse",),
    29: ("struck",),
}
_EXTENDED = {38: "fg", 48: "bg"}
_CUBE = (0, 95, 135, 175, 215, 255)  # levels of the 256-color palette

Piece = tuple[str, str]  # class names, empty for plain text, and the text


class Style(msgspec.Struct, frozen=True):
    """The current style of text: its colors and weights."""

    color: str = ""
    ground: str = ""
    weights: frozenset[str] = frozenset()

    @property
    def classes(self) -> str:
        """Return the class names of the style, separated by spaces."""
        names = [
            f"fg-{self.color}" if self.color else "",
            f"bg-{self.ground}" if self.ground else "",
        ]
        return " ".join(filter(None, [*names, *sorted(self.weights)]))


PLAIN = Style()


def styled(line: str, style: Style = PLAIN) -> tuple[list[Piece], Style]:
    """Return the styled parts of a line, and the style at its end."""
    pieces: list[Piece] = []
    position = 0
    line = _after_returns(line)
    for sequence in _SEQUENCE.finditer(line):
        if len(pieces) >= _MOST_PIECES:
            break
        _add(pieces, style, line[position : sequence.start()])
        position = sequence.end()
        if sequence[1] is not None:
            style = _changed(style, sequence[1])
    _add(pieces, style, _SEQUENCE.sub("", line[position:]))
    return pieces, style


def plain(line: str) -> str:
    """Return a line without escape sequences and control characters."""
    return "".join(text for _, text in styled(line)[0])


def _after_returns(line: str) -> str:
    """Return a line as a terminal shows it: text after a carriage return overwrites the line."""
    return line.rstrip("\r").rpartition("\r")[2]


def _add(pieces: list[Piece], style: Style, text: str) -> None:
    if text:
        pieces.append((style.classes, visible(text)))


def _changed(style: Style, parameters: str) -> Style:
    """Return the style after an escape sequence with these parameters."""
    numbers = [int(part) if part.isdecimal() else 0 for part in re.split("[;:]", parameters)]
    position = 0
    while position < len(numbers):
        number = numbers[position]
        position += 1
        if number in _EXTENDED:
            color, position = _extended(numbers, position)
            style = _colored(style, _EXTENDED[number], color)
        else:
            style = _with(style, number)
    return style


def _with(style: Style, number: int) -> Style:
    if number == 0:
        return PLAIN
    if number in _WEIGHTS:
        return msgspec.structs.replace(style, weights=style.weights | {_WEIGHTS[number]})
    if number in _ENDS:
        return msgspec.structs.replace(style, weights=style.weights - set(_ENDS[number]))
    layer = "bg" if number // 10 in (4, 10) else "fg"
    if number in (39, 49):
        return _colored(style, layer, "")
    if 30 <= number <= 37 or 40 <= number <= 47:
        return _colored(style, layer, _NAMES[number % 10])
    if 90 <= number <= 97 or 100 <= number <= 107:
        return _colored(style, layer, f"bright-{_NAMES[number % 10]}")
    return style


def _colored(style: Style, layer: str, color: str) -> Style:
    if layer == "fg":
        return msgspec.structs.replace(style, color=color)
    return msgspec.structs.replace(style, ground=color)


def _extended(numbers: list[int], position: int) -> tuple[str, int]:
    """Return the nearest named color, and the position after the color in `numbers`.

    At `position`, the color is `5;N` from the palette of 256 colors, or `2;R;G;B`. For any other
    numbers, the name is empty.
    """
    kind = numbers[position] if position < len(numbers) else 0
    if kind == 5 and position + 1 < len(numbers):
        return _indexed(numbers[position + 1]), position + 2
    if kind == 2 and position + 3 < len(numbers):
        return _nearest(*numbers[position + 1 : position + 4]), position + 4
    return "", len(numbers)


def _indexed(number: int) -> str:
    if number < 16:
        return _NAMES[number] if number < 8 else f"bright-{_NAMES[number - 8]}"
    if number >= 232:
        return _nearest(*[8 + 10 * (min(number, 255) - 232)] * 3)
    number -= 16
    return _nearest(_CUBE[number // 36], _CUBE[number // 6 % 6], _CUBE[number % 6])


def _nearest(red: int, green: int, blue: int) -> str:
    """Return the named color nearest to an RGB color.

    A component is set if it exceeds half of the strongest component.
    """
    most = max(red, green, blue)
    if most < 64:
        return "black"
    parts = [2 * part > most for part in (red, green, blue)]
    name = _NAMES[sum(bit << position for position, bit in enumerate(parts))]
    return f"bright-{name}" if most > 192 else name
