"""Valid paths and items of variables."""

import pytest

from daemon.variables.validation import MAX_SIZE, items_error, path_error


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b/c",
        "a-b_c~d/9",
        "a" * 128,
        "nomad/jobs",
        "nomad/jobs/web/group/task",
        "nomad/job-templates/short",
        "nomadic",
        "x/nomad/y",
    ],
)
def test_a_variable_can_be_at_a_plain_path(path: str) -> None:
    assert path_error(path) == ""


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", 'invalid path ""'),
        ("a b", 'invalid path "a b"'),
        ("a*", 'invalid path "a*"'),
        ("a.b", 'invalid path "a.b"'),
        ("ü", 'invalid path "ü"'),
        ("a\n", 'invalid path "a\\n"'),
        ("a" * 129, "invalid path"),
        ("nomad", "only paths at"),
        ("nomad/other", "only paths at"),
        ("nomad/job-templates", "one level below"),
        ("nomad/job-templates/", "one level below"),
        ("nomad/job-templates/a/b", "one level below"),
    ],
)
def test_invalid_or_reserved_path_is_refused(path: str, words: str) -> None:
    assert words in path_error(path)


def test_names_and_values_together_have_a_limit() -> None:
    assert items_error({"k": "v" * (MAX_SIZE - 1)}) == ""
    assert "65537 bytes" in items_error({"k": "v" * MAX_SIZE})


def test_bytes_are_counted_instead_of_characters() -> None:
    assert items_error({"k": "ü" * (MAX_SIZE // 2)}) != ""
