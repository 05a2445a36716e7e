"""`steward install` and `steward uninstall`: the daemon as a service of systemd, and back."""

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

import click

from storage.errors import Invalid, Refused

UNIT = Path("/etc/systemd/system/steward.service")
_RUNS_HERE = Path("/run/systemd/system")  # is there if systemd is the first process: sd_booted(3)
_EXEC_START = "ExecStart=/usr/bin/steward agent"

Systemctl = Callable[[str, str], None]  # what to do, and to which unit; may be none


@click.command("install")
@click.option("--now", is_flag=True, help="Start it as well.")
def install_command(*, now: bool) -> None:
    """Set this program up as a service that starts with the machine.

    Example: steward install --now
    """
    _check_machine()
    for line in install(UNIT, program(sys.argv[0], os.environ), _systemctl, now=now):
        click.echo(line)


@click.command("uninstall")
def uninstall_command() -> None:
    """Stop the service and take it away; data, settings and running tasks stay.

    Example: steward uninstall
    """
    _check_machine()
    for line in uninstall(UNIT, _systemctl):
        click.echo(line)


def install(
    unit: Path, command: Sequence[str], systemctl: Systemctl, *, now: bool
) -> Iterator[str]:
    """Write the unit, have it start at boot, or now as well; yield what was done.

    Raises `Refused` for a unit that is not ours, `Invalid` for a program that others can change.
    """
    _check_ours(unit)
    for word in command:
        if word.startswith("/"):
            check_trusted(Path(word))
    text = unit_text(command)
    changed = not unit.exists() or unit.read_text() != text
    if changed:
        fresh = unit.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.replace(unit)
    yield f"{'wrote' if changed else 'found as it should be:'} {unit}"
    systemctl("daemon-reload", "")
    systemctl("enable", unit.name)
    yield "the daemon starts with the machine"
    if now:
        # What runs already may be an older program; its tasks go on meanwhile.
        systemctl("restart", unit.name)
        yield "it runs: see systemctl status steward, and /var/lib/steward/bootstrap-token for the first token"
    else:
        yield "start it with: systemctl start steward"


def uninstall(unit: Path, systemctl: Systemctl) -> Iterator[str]:
    """Stop the service and remove the unit; yield what was done. Raises `Refused`."""
    if not unit.exists():
        yield f"there is no {unit}: nothing to do"
        return
    _check_ours(unit)
    systemctl("disable --now", unit.name)
    yield "stopped the daemon; tasks that run go on"
    unit.unlink()
    systemctl("daemon-reload", "")
    yield f"removed {unit}"
    yield "kept the data in /var/lib/steward and the settings in /etc/steward"


def unit_text(command: Sequence[str]) -> str:
    """Return the unit for a program."""
    text = resources.files("daemon").joinpath("steward.service").read_text()
    # systemd expands `%` and `$`, and reads quotes much as a shell does.
    words = shlex.join(command).replace("%", "%%").replace("$", "$$")
    return text.replace(_EXEC_START, f"ExecStart={words} agent")


def program(started_as: str, environment: Mapping[str, str]) -> list[str]:
    """Return the command by which this program can be started again from anywhere."""
    if launcher := environment.get("LAUNCHED_STEWARD"):  # set by the one file
        return [launcher]
    path = Path(started_as)
    if path.name == "__main__.py":
        return [sys.executable, "-m", path.parent.name]
    return [str(path.absolute())]


def check_trusted(path: Path) -> None:
    """Raise `Invalid` if anybody but root can change what would be run as root."""
    for place in _way_to(path):
        found = place.lstat()
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or (shared and not stat.S_ISLNK(found.st_mode)):
            raise Invalid(
                f"{path} would be run as root, but others can change {place}: install the program "
                "where only root writes, such as /usr/local"
            )


def _way_to(path: Path) -> Iterator[Path]:
    """Yield all that decides what stands at a path: it, what is above, and where links lead."""
    for place in (path, *path.parents):
        yield place
        if place.is_symlink():
            yield from _way_to(place.parent / place.readlink())


def _check_ours(unit: Path) -> None:
    first = unit_text([]).partition("\n")[0]
    if unit.exists() and not unit.read_text().startswith(first):
        raise Refused(f"{unit} was written by somebody else: move it away first")


def _check_machine() -> None:
    if not _RUNS_HERE.is_dir():
        raise Refused('systemd does not run this machine: start the daemon with "steward agent"')
    if os.geteuid() != 0:
        raise Refused("only root may do this: put sudo before it")


def _systemctl(verb: str, unit: str) -> None:
    words = ["systemctl", "--quiet", *verb.split(), *([unit] if unit else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  # our own words
    if done.returncode:
        raise Refused(f"{shlex.join(words)} failed: {done.stderr.strip() or done.returncode}")
