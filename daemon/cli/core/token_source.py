"""Secrets for the command line: from the environment, a private file, or a prompt.

Every user can list the arguments of processes. So every secret can be passed in another way.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from daemon.cli.core.files import reason_of
from storage.errors import Invalid

FILE_VARIABLE = "STEWARD_TOKEN_FILE"
ASK = "-"  # given in place of a secret: prompt for the secret


def find_token(option: str, environment: Mapping[str, str]) -> str:
    """Return the token's secret: the option's value (`-`: from a prompt), or the default."""
    return prompt_secret("Token") if option == ASK else option or default_token(environment)


def default_token(environment: Mapping[str, str]) -> str:
    """Return the secret in the token file of the environment, or in the default file.

    Raises `Invalid` for a file that cannot be read, or that other users can read.
    """
    named = environment.get(FILE_VARIABLE, "")
    path = Path(named).expanduser() if named else token_file(environment)
    try:
        with path.open() as file:
            _check(file.fileno(), path)
            return file.read().strip()
    except FileNotFoundError:
        if named:
            raise Invalid(f"{FILE_VARIABLE} names {path}, which does not exist") from None
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read the token in {path}: {reason_of(error)}") from None


def store_token(token: str, environment: Mapping[str, str]) -> Path:
    """Store a token for the next commands in a private file; return its path.

    An empty token deletes the file. Raises `Invalid`.
    """
    path = stored_at(environment)
    beside = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        if not token:
            path.unlink(missing_ok=True)
            return path
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(f"{token}\n")
        beside.replace(path)
    except OSError as error:
        raise Invalid(f"cannot store the token in {path}: {error.strerror}") from error
    return path


def stored_at(environment: Mapping[str, str]) -> Path:
    """Return the path of the token file that the environment names, or else the default path."""
    named = environment.get(FILE_VARIABLE, "")
    return Path(named).expanduser() if named else token_file(environment)


def token_file(environment: Mapping[str, str]) -> Path:
    """Return the default path of the token file."""
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "steward" / "token"


def _check(file: int, path: Path) -> None:
    status = os.fstat(file)
    if status.st_uid not in (os.geteuid(), 0):
        raise Invalid(f"the token file {path} belongs to another user: it is ignored")
    if status.st_mode & 0o077:
        raise Invalid(f"other users can read the token file {path}: run chmod 600 {path}")


def prompt_secret(prompt: str) -> str:
    """Prompt for a secret, or read it from standard input."""
    if sys.stdin.isatty():
        return str(click.prompt(prompt, hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()
