"""Each exemption from a check, and each ignored error, has its reason as a comment.

The reason follows on the same line, or is in the comment above. A block of lines with the same
exemption has one reason, above its first line.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("bench", "daemon", "packaging", "storage", "tests")
EXEMPTION = re.compile(
    r"#\s*(noqa|nosec|type: ignore)(?:: ?[A-Z]+[0-9]+(?:, [A-Z]+[0-9]+)*|\[[a-z, -]+\])?"
)
MARKS = re.compile(r"# ?(?:noqa|nosec|type: ignore)|suppress\(")  # most modules have none
# The type checker reads only these folders, so other lines need no exemption from it.
TYPED = ("daemon/", "storage/", "packaging/client/")


def comments(text: str) -> dict[int, str]:
    """Return the comments of a module by line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def is_reason(comment: str) -> bool:
    return any(char.isalpha() for char in EXEMPTION.sub("", comment))


def exempted_lines(text: str) -> list[int]:
    """Return the lines whose exemption has no reason."""
    noted, lines, explained, found = comments(text), text.splitlines(), set[int](), []
    for line, comment in noted.items():
        if (match := EXEMPTION.search(comment)) is None:
            continue
        above = line - 1
        while above and lines[above - 1].strip() in ("", "@property"):
            above -= 1
        earlier = noted.get(above, "")
        is_first = not EXEMPTION.search(earlier) and is_reason(earlier)
        is_further = above in explained and match[0] in earlier
        if is_reason(comment) or is_first or is_further:
            explained.add(line)
        else:
            found.append(line)
    return found


def ignored_errors(text: str) -> list[int]:
    """Return the lines of `suppress` without a reason."""
    noted, found = comments(text), []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.With | ast.AsyncWith):
            continue
        calls = [item.context_expr for item in node.items]
        names = {ast.unparse(call.func) for call in calls if isinstance(call, ast.Call)}
        lines = range(node.lineno - 1, node.body[0].lineno)
        if names & {"suppress", "contextlib.suppress"} and not any(
            is_reason(noted.get(line, "")) for line in lines
        ):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_exemption_and_each_ignored_error_has_a_reason(folder: str) -> None:
    without = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in [path.read_text()]
        if MARKS.search(text)
        for line in (*exempted_lines(text), *ignored_errors(text))
    ]
    assert without == []


def test_only_checked_types_are_exempted() -> None:
    found = [
        f"{name}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in [str(path.relative_to(ROOT))]
        if not name.startswith(TYPED)
        for text in [path.read_text()]
        if "type: ignore" in text
        for line, comment in comments(text).items()
        if re.match(r"# type: ignore", comment)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = 1  # noqa: E501", [1]),
        ("x = 1  # noqa: E501  # a table", []),
        ("# a table\nx = 1  # noqa: E501\ny = 1  # noqa: E501", []),
        ("x = 1  # type: ignore[arg-type]", [1]),
        ("x = 1  # nosec", [1]),
        ("text = '# noqa: E501'", []),
    ],
)
def test_exemption_without_a_reason_is_detected(text: str, lines: list[int]) -> None:
    assert exempted_lines(text) == lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("with suppress(OSError):\n    run()", [1]),
        ("with suppress(OSError):  # it has ended\n    run()", []),
        ("# It has ended.\nwith suppress(OSError):\n    run()", []),
        ("with suppress(OSError):\n    # It has ended.\n    run()", []),
    ],
)
def test_ignored_error_without_a_reason_is_detected(text: str, lines: list[int]) -> None:
    assert ignored_errors(text) == lines
