"""Manual pages, generated from the command line and from the documentation of the settings.

`manuals.py DIRECTORY DOCUMENT` writes `man1/steward-….1`, a page for each command, and
`man5/steward.toml.5`. The pages of commands come only from the help texts of the commands.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent))
from settings import settings

from daemon.__main__ import command_line
from daemon.version import VERSION

_FILES = {
    "/etc/steward/steward.toml": "settings of the daemon: steward.toml(5)",
    "/etc/steward/root.key": "the root key, which encrypts all secrets; created at the first start",
    "/var/lib/steward": "all data; store/bootstrap-token contains the first token",
    "/run/steward/steward.sock": "the operators' socket of this host",
}


def escaped(text: str) -> str:
    """Return text, escaped for the formatter of manual pages."""
    plain = text.replace("\\", "\\(rs").replace("-", "\\-").replace("`", "")
    return re.sub(r"^([.'])", r"\\&\1", plain, flags=re.MULTILINE)


def page(title: str, section: int, parts: dict[str, str]) -> str:
    """Return a manual page with the parts that are not empty."""
    head = f'.TH {title.upper()} {section} "" "Steward {VERSION}" "Steward"\n'
    return head + "".join(f".SH {name}\n{text}\n" for name, text in parts.items() if text)


def commands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield a command and all its subcommands, each with its context."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if below := command.get_command(context, name):
                yield from commands(below, click.Context(below, info_name=name, parent=context))


def of_command(command: click.Command, context: click.Context) -> str:
    """Return the manual page of a command."""
    words = context.command_path
    first, _, rest = (command.help or "").strip().partition("\n\n")
    name = words.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    return page(
        name,
        1,
        {
            "NAME": escaped(f"{name} - {' '.join(first.split()).rstrip('.')}"),
            "SYNOPSIS": f".B {escaped(words)}\n{escaped(usage)}",
            "DESCRIPTION": _paragraphs(f"{first}\n\n{rest}"),
            "OPTIONS": _terms(
                record
                for param in command.get_params(context)
                if (record := param.get_help_record(context)) and record[1]
            ),
            "COMMANDS": _below(command, context),
            "FILES": _terms(_FILES.items()) if context.parent is None else "",
            "SEE ALSO": f".BR {escaped(_above(context))}",
        },
    )


def _above(context: click.Context) -> str:
    if context.parent is None:
        return "steward.toml (5)"
    return f"{context.parent.command_path.replace(' ', '-')} (1)"


def _below(command: click.Command, context: click.Context) -> str:
    if not isinstance(command, click.Group):
        return ""
    subcommands = [
        (name, command.get_command(context, name)) for name in command.list_commands(context)
    ]
    return _terms((name, one.get_short_help_str(200)) for name, one in subcommands if one)


def _paragraphs(text: str) -> str:
    parts = (" ".join(part.split()) for part in text.replace("\b", "").split("\n\n"))
    return "\n.PP\n".join(escaped(part) for part in parts if part)


def _terms(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(
        f".TP\n.B {escaped(term)}\n{escaped(' '.join(text.split())) or '.'}" for term, text in pairs
    )


def of_settings(document: str) -> str:
    """Return the manual page of the settings file."""
    return page(
        "steward.toml",
        5,
        {
            "NAME": escaped("steward.toml - settings of the agent of Steward"),
            "SYNOPSIS": "/etc/steward/steward.toml",
            "DESCRIPTION": _paragraphs(
                "The file is in TOML, with a line NAME = VALUE for each setting. The environment variable "
                "STEWARD_NAME, with the name in capitals, overrides the file. The option --NAME of "
                "steward agent, with - in place of _, overrides both. An unknown name is an error."
            ),
            "SETTINGS": _terms(
                (setting.name, f"{setting.meaning}. Default: {setting.default}.")
                for setting in settings(document)
            ),
            "SEE ALSO": ".BR steward\\-agent (1)",
        },
    )


def main(target: Path, document: Path) -> None:
    """Write all manual pages."""
    cli = command_line()
    top = click.Context(cli, info_name="steward", help_option_names=["-h", "--help"])
    for command, context in commands(cli, top):
        name = context.command_path.replace(" ", "-")
        _write(target / "man1" / f"{name}.1", of_command(command, context))
    _write(target / "man5/steward.toml.5", of_settings(document.read_text()))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
