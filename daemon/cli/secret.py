"""Secrets for the command line: from the environment, from a file of one's own, or asked for.

On the command line itself a secret is seen by everybody who lists the processes; so it is never
needed there.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from storage.errors import Invalid

FILE_VARIABLE = "STEWARD_TOKEN_FILE"
ASK = "-"  # in the place of a secret: it is asked for


def find_token(given: str, environment: Mapping[str, str]) -> str:
    """Return the secret of the token to use: the given one, asked for when that is `-`, or the usual."""
    return ask("Token") if given == ASK else given or usual_token(environment)


def usual_token(environment: Mapping[str, str]) -> str:
    """Return the secret of the file that is named, else of the usual one, if there is one.

    Raises `Invalid` for a file that cannot be read, or that others can read.
    """
    named = environment.get(FILE_VARIABLE, "")
    path = Path(named).expanduser() if named else usual_file(environment)
    try:
        with path.open() as file:
            _check(file.fileno(), path)
            return file.read().strip()
    except FileNotFoundError:
        if named:
            raise Invalid(f"{FILE_VARIABLE} names {path}, which is not there") from None
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read the token in {path}: {error}") from None


def keep_token(token: str, environment: Mapping[str, str]) -> Path:
    """Leave a token for the next commands, in a file for this user alone; return its path.

    An empty one removes the file. Raises `Invalid`.
    """
    named = environment.get(FILE_VARIABLE, "")
    path = Path(named).expanduser() if named else usual_file(environment)
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
        raise Invalid(f"cannot keep the token in {path}: {error.strerror}") from error
    return path


def usual_file(environment: Mapping[str, str]) -> Path:
    """Return where a token lies when nobody says so."""
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "steward" / "token"


def _check(file: int, path: Path) -> None:
    status = os.fstat(file)
    if status.st_uid not in (os.geteuid(), 0):
        raise Invalid(f"the token file {path} belongs to somebody else: it is not used")
    if status.st_mode & 0o077:
        raise Invalid(f"others can read the token file {path}: chmod 600 {path}")


def ask(what: str) -> str:
    """Return a secret that somebody types, or that stands on standard input."""
    if sys.stdin.isatty():
        return str(click.prompt(what, hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()
