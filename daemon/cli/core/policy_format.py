"""Formatting of policies: even indentation, with comments in place. No I/O."""

import re

_INDENT = "  "
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|#.*|//.*')
_ASSIGNED = re.compile(r'^(\s*(?:"(?:[^"\\]|\\.)*"|[\w.-]+))\s*=\s*')
_HEREDOC = re.compile(r"<<-?(\w+)\s*$")


def formatted(text: str) -> str:
    """Return a text whose lines are indented by two spaces for each open brace or bracket."""
    lines: list[str] = []
    depth, until = 0, ""
    for raw in text.splitlines():
        line = raw.strip()
        if until:  # the content of a heredoc stays unchanged
            lines.append(raw)
            until = "" if line == until else until
            continue
        bare = _QUOTED.sub("", line)
        closing = len(line) - len(line.lstrip("}])"))
        indent = _INDENT * max(depth - closing, 0) if line else ""
        lines.append(indent + _ASSIGNED.sub(r"\1 = ", line))
        depth += sum(map(bare.count, "{[(")) - sum(map(bare.count, "}])"))
        if begin := _HEREDOC.search(bare):
            until = begin[1]
    return "\n".join(_without_gaps(lines)) + "\n"


def _without_gaps(lines: list[str]) -> list[str]:
    """Return the lines with at most one empty line in a row."""
    kept_lines: list[str] = []
    for line in lines:
        if line or (kept_lines and kept_lines[-1]):
            kept_lines.append(line)
    return kept_lines[:-1] if kept_lines and not kept_lines[-1] else kept_lines
