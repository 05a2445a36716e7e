"""Errors about files that a command cannot read."""

from pathlib import Path

import pytest

from tests.parts.cli.conftest import Terminal

COMMANDS = {
    "acl policy apply": ("web", "{}"),
    "policy write": ("web", "{}"),
    "var put": ("web", "a=@{}"),
    "write": ("auth/cloudid/config", "a=@{}"),
}


@pytest.mark.parametrize("words", COMMANDS)
def test_missing_file_is_named_without_the_number_of_the_error(
    terminal: Terminal, tmp_path: Path, words: str
) -> None:
    missing = str(tmp_path / "missing")
    arguments = [word.format(missing) for word in COMMANDS[words]]
    result = terminal.type(*words.split(), *arguments)
    assert result.exit_code == 1
    assert result.stderr == f"steward: cannot read {missing}: No such file or directory\n"


@pytest.mark.parametrize("words", COMMANDS)
def test_file_in_another_encoding_is_named(terminal: Terminal, tmp_path: Path, words: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff")
    arguments = [word.format(file) for word in COMMANDS[words]]
    result = terminal.type(*words.split(), *arguments)
    assert result.exit_code == 1
    assert result.stderr == f"steward: cannot read {file}: it is not text in UTF-8\n"
