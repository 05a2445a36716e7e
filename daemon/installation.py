"""`steward install` and `steward uninstall`: the daemon as a service of systemd, and back.

Root sets it up for the machine; others for themselves, with the manager that systemd runs for them.
"""

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

import click
import msgspec

from daemon.config import default_data_dir
from storage.errors import Invalid, Refused

SERVICE, SOCKET = "steward.service", "steward.socket"
UNITS = (SERVICE, "steward-tasks.service", SOCKET)
_RUNS_HERE = Path("/run/systemd/system")  # is there if systemd is the first process: sd_booted(3)
_OF_THE_SYSTEM = Path("/etc/systemd/system")
_OF_PACKAGES = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
_EXEC_START = "ExecStart=/usr/bin/steward agent"
# What the manager of a user cannot do, or does by taking from tasks what they could have. The data
# of a user stands where it stands without a manager.
_FOR_ROOT_ALONE = re.compile(
    r"(State|Runtime|Configuration)Directory\w*=|Protect\w+=|LockPersonality=|RestrictRealtime="
    r"|SystemCallArchitectures=|OOMScoreAdjust=|# Tasks inherit"
)

Systemctl = Callable[[str, str], None]  # what to do, and to which unit; may be none


class Place(msgspec.Struct, frozen=True):
    """Where units go: of the system, or of a user without root's rights."""

    directory: Path
    of_user: bool = False

    @property
    def data(self) -> str:
        """Return where the daemon that is started there keeps its data."""
        return str(default_data_dir({}))

    @property
    def systemctl(self) -> str:
        """Return the command that people type."""
        return "systemctl --user" if self.of_user else "systemctl"


@click.command("install")
@click.option("--now", is_flag=True, help="Start it as well.")
@click.option("--user", is_flag=True, help="For yourself alone, without root.")
def install_command(*, now: bool, user: bool) -> None:
    """Set this program up as a service that starts with the machine.

    Example: steward install --now
    """
    place = _place(user=user)
    command = program(sys.argv[0], os.environ)
    for line in install(place, command, _systemctl(place), now=now):
        click.echo(line)


@click.command("uninstall")
@click.option("--user", is_flag=True, help="What was set up for yourself alone.")
def uninstall_command(*, user: bool) -> None:
    """Stop the service and take it away; data, settings and running tasks stay.

    Example: steward uninstall
    """
    place = _place(user=user)
    for line in uninstall(place, _systemctl(place)):
        click.echo(line)


def install(
    place: Place, command: Sequence[str], systemctl: Systemctl, *, now: bool
) -> Iterator[str]:
    """Write the units, have the daemon start at boot, or now as well; yield what was done.

    Raises `Refused` for units that are not ours, `Invalid` for a program that others can change.
    """
    for name in UNITS:
        _check_ours(place.directory / name)
    for word in command:
        if word.startswith("/"):
            check_trusted(Path(word), os.geteuid() if place.of_user else 0)
    for name in UNITS:
        unit = place.directory / name
        changed = _write(unit, unit_text(name, command, of_user=place.of_user))
        yield f"{'wrote' if changed else 'found as it should be:'} {unit}"
    systemctl("daemon-reload", "")
    systemctl("enable", SERVICE)
    if place.of_user:
        yield "the daemon starts when you log in, or with the machine after: loginctl enable-linger"
    else:
        yield "the daemon starts with the machine"
    if now:
        # What runs already may be an older program; its tasks go on meanwhile.
        systemctl("restart", SERVICE)
        yield (
            f"it runs: see {place.systemctl} status steward, and {place.data}/store/bootstrap-token "
            "for the first token"
        )
    else:
        yield f"start it with: {place.systemctl} start steward"


def uninstall(place: Place, systemctl: Systemctl) -> Iterator[str]:
    """Stop the service and remove the units; yield what was done. Raises `Refused`."""
    present = [name for name in UNITS if (place.directory / name).exists()]
    if not present:
        yield f"there is no {place.directory / SERVICE}: nothing to do"
        return
    for name in present:
        _check_ours(place.directory / name)
    # The port first: whoever connected to it would start the daemon again.
    for name in (SOCKET, SERVICE):
        if name in present:
            systemctl("disable --now", name)
    yield "stopped the daemon; tasks that run go on"
    for name in present:
        (place.directory / name).unlink()
        yield f"removed {place.directory / name}"
    systemctl("daemon-reload", "")
    yield f"kept the data in {place.data} and the settings"


def _write(unit: Path, text: str) -> bool:
    """Have a unit say this; tell whether it said something else, or nothing."""
    if unit.exists() and unit.read_text() == text:
        return False
    unit.parent.mkdir(parents=True, exist_ok=True)
    fresh = unit.with_name(f"{unit.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(unit)
    return True


def unit_text(name: str, command: Sequence[str], *, of_user: bool = False) -> str:
    """Return a unit, in which the daemon is this program."""
    text = resources.files("daemon").joinpath(name).read_text()
    # systemd expands `%` and `$`, and reads quotes much as a shell does.
    words = shlex.join(command).replace("%", "%%").replace("$", "$$")
    text = text.replace(_EXEC_START, f"ExecStart={words} agent")
    if not of_user:
        return text
    lines = [line for line in text.splitlines() if not _FOR_ROOT_ALONE.match(line)]
    # The manager of a user knows neither the network nor the machine's targets.
    kept = "\n".join(lines).replace("multi-user.target", "default.target")
    return re.sub(r"\b(network-online|local-fs|time-sync)\.target ", "", kept) + "\n"


def program(started_as: str, environment: Mapping[str, str]) -> list[str]:
    """Return the command by which this program can be started again from anywhere."""
    if launcher := environment.get("LAUNCHED_STEWARD"):  # set by the one file
        return [launcher]
    path = Path(started_as)
    if path.name == "__main__.py":
        return [sys.executable, "-m", path.parent.name]
    return [str(path.absolute())]


def check_trusted(path: Path, owner: int = 0) -> None:
    """Raise `Invalid` if anybody but root and `owner` can change what would be run as that user."""
    for place in _way_to(path):
        found = place.lstat()
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, owner) or (shared and not stat.S_ISLNK(found.st_mode)):
            raise Invalid(
                f"{path} would be run with your rights, but others can change {place}: install the "
                "program where nobody else writes, such as /usr/local for root"
            )


def _way_to(path: Path) -> Iterator[Path]:
    """Yield all that decides what stands at a path: it, what is above, and where links lead."""
    for place in (path, *path.parents):
        yield place
        if place.is_symlink():
            yield from _way_to(place.parent / place.readlink())


def _check_ours(unit: Path) -> None:
    first = unit_text(unit.name, []).partition("\n")[0]
    if unit.exists() and not unit.read_text().startswith(first):
        raise Refused(f"{unit} was written by somebody else: move it away first")


def _place(*, user: bool) -> Place:
    """Return where units go. Raises `Refused` where they are of no use, or not ours to write."""
    if not _RUNS_HERE.is_dir():
        raise Refused('systemd does not run this machine: start the daemon with "steward agent"')
    if user:
        if os.geteuid() == 0:
            raise Refused("--user is for people without root: leave it out")
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Place(Path(base) / "systemd/user", of_user=True)
    if os.geteuid() != 0:
        raise Refused("only root may do this: put sudo before it, or say --user")
    if any((directory / SERVICE).exists() for directory in _OF_PACKAGES):
        raise Refused(
            "a package has set it up: systemctl enable --now steward starts it, apt removes it"
        )
    return Place(_OF_THE_SYSTEM)


def _systemctl(place: Place) -> Systemctl:
    def ask(verb: str, unit: str) -> None:
        words = [*place.systemctl.split(), "--quiet", *verb.split(), *([unit] if unit else [])]
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  # our own words
        if done.returncode:
            raise Refused(f"{shlex.join(words)} failed: {done.stderr.strip() or done.returncode}")

    return ask
