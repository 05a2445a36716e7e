"""`steward install` and `steward uninstall`: set up or remove the daemon as a systemd service.

Root installs it for the host. Other users install it for themselves, with the systemd manager of
their user.
"""

import grp
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

from daemon.config.settings import default_data_dir
from daemon.process.service_account import NAME
from storage.errors import Invalid, Refused

SERVICE, SOCKET = "steward.service", "steward.socket"
UNITS = (SERVICE, "steward-tasks.service", SOCKET)
_RUNS_HERE = Path("/run/systemd/system")  # exists if systemd is the init process: sd_booted(3)
_OF_THE_SYSTEM = Path("/etc/systemd/system")
_OF_PACKAGES = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
_EXEC_START = "ExecStart=/usr/bin/steward agent"
# Directives that a user's manager does not support, or that would restrict tasks without need. For
# a user's installation, the data stays in its default directory.
_FOR_ROOT_ALONE = re.compile(
    r"(State|Runtime|Configuration)Directory\w*=|Protect\w+=|LockPersonality=|RestrictRealtime="
    r"|SystemCallArchitectures=|OOMScoreAdjust=|# Tasks inherit"
)

# The user that the daemon switches to. Its group may read the settings, so that a reload also
# works.
_ACCOUNT = f'u {NAME} - "Steward" /var/lib/steward'
_SETTINGS = Path("/etc/steward")

Systemctl = Callable[[str, str], None]  # an action and a unit, which may be empty


class UnitLocation(msgspec.Struct, frozen=True):
    """The target of an installation: the system, or one user without root's rights."""

    directory: Path
    of_user: bool = False

    @property
    def data(self) -> str:
        """Return the data directory of the installed daemon."""
        return str(default_data_dir({}))

    @property
    def systemctl(self) -> str:
        """Return the systemctl command that controls these units, with its options."""
        return "systemctl --user" if self.of_user else "systemctl"


@click.command("install")
@click.option("--now", is_flag=True, help="Also start it now.")
@click.option("--user", is_flag=True, help="Install for this user only, without root.")
def install_command(*, now: bool, user: bool) -> None:
    """Install this program as a service that starts at boot.

    Example: steward install --now
    """
    location = _unit_location(user=user)
    command = executable_path(sys.argv[0], os.environ)
    if not location.of_user:
        click.echo(make_account(_run, _SETTINGS))
    for line in install(location, command, _systemctl(location), now=now):
        click.echo(line)


@click.command("uninstall")
@click.option("--user", is_flag=True, help="Uninstall the service of this user.")
def uninstall_command(*, user: bool) -> None:
    """Stop and remove the service; data, settings and running tasks stay.

    Example: steward uninstall
    """
    location = _unit_location(user=user)
    for line in uninstall(location, _systemctl(location)):
        click.echo(line)


def install(
    location: UnitLocation, command: Sequence[str], systemctl: Systemctl, *, now: bool
) -> Iterator[str]:
    """Write the units, enable the service and optionally start it; yield a text for each step.

    Raises `Refused` for units that Steward did not write, and `Invalid` for a program that other
    users can change.
    """
    for name in UNITS:
        _check_ours(location.directory / name)
    for word in command:
        if word.startswith("/"):
            check_program_owner(Path(word), os.geteuid() if location.of_user else 0)
    for name in UNITS:
        unit = location.directory / name
        changed = _write(unit, unit_text(name, command, of_user=location.of_user))
        yield f"{'wrote' if changed else 'unchanged:'} {unit}"
    systemctl("daemon-reload", "")
    systemctl("enable", SERVICE)
    if location.of_user:
        yield "the daemon starts when you log in; to start it at boot, run: loginctl enable-linger"
    else:
        yield "the daemon starts at boot"
    if now:
        # A running daemon may be an older program. Its tasks keep running during the restart.
        systemctl("restart", SERVICE)
        yield (
            f"the daemon runs: see {location.systemctl} status steward; the first token is in "
            f"{location.data}/store/bootstrap-token"
        )
    else:
        yield f"start the daemon with: {location.systemctl} start steward"


def uninstall(location: UnitLocation, systemctl: Systemctl) -> Iterator[str]:
    """Stop the service and remove the units; yield a text for each step. Raises `Refused`."""
    present = [name for name in UNITS if (location.directory / name).exists()]
    if not present:
        yield f"{location.directory / SERVICE} does not exist, so there is nothing to uninstall"
        return
    for name in present:
        _check_ours(location.directory / name)
    # The socket comes first: a connection to it would start the daemon again.
    for name in (SOCKET, SERVICE):
        if name in present:
            systemctl("disable --now", name)
    yield "stopped the daemon; running tasks continue"
    for name in present:
        (location.directory / name).unlink()
        yield f"removed {location.directory / name}"
    systemctl("daemon-reload", "")
    yield f"kept the settings, and the data in {location.data}"


def make_account(run: Callable[[Sequence[str]], None], settings: Path) -> str:
    """Create the daemon's user and let it read the settings; return a description of this step."""
    try:
        run(["systemd-sysusers", "--inline", _ACCOUNT])
        group = grp.getgrnam(NAME).gr_gid
    except (KeyError, Refused) as error:
        return f"the daemon will run as root, because there is no user {NAME}: {error}"
    settings.mkdir(mode=0o750, exist_ok=True)
    for path, mode in ((settings, 0o750), (settings / "steward.toml", 0o640)):
        if path.exists():
            os.chown(path, -1, group, follow_symlinks=False)
            path.chmod(mode)
    return f"the daemon will run as the user {NAME}, which may read {settings}"


def _write(unit: Path, text: str) -> bool:
    """Write a unit; return whether its text changed."""
    if unit.exists() and unit.read_text() == text:
        return False
    unit.parent.mkdir(parents=True, exist_ok=True)
    fresh = unit.with_name(f"{unit.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(unit)
    return True


def unit_text(name: str, command: Sequence[str], *, of_user: bool = False) -> str:
    """Return the text of a unit that starts the daemon with `command`."""
    text = resources.files("daemon").joinpath(name).read_text()
    # systemd expands `%` and `$`, and parses quotes much like a shell.
    words = shlex.join(command).replace("%", "%%").replace("$", "$$")
    text = text.replace(_EXEC_START, f"ExecStart={words} agent")
    if not of_user:
        return text
    lines = [line for line in text.splitlines() if not _FOR_ROOT_ALONE.match(line)]
    # The manager of a user has neither the network target nor the system's targets.
    adapted = "\n".join(lines).replace("multi-user.target", "default.target")
    return re.sub(r"\b(network-online|local-fs|time-sync)\.target ", "", adapted) + "\n"


def executable_path(started_as: str, environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts this program again from any directory."""
    if launcher := environment.get("LAUNCHED_STEWARD"):  # set by the single-file executable
        return [launcher]
    path = Path(started_as)
    if path.name == "__main__.py":
        return [sys.executable, "-m", path.parent.name]
    return [str(path.absolute())]


def check_program_owner(path: Path, owner: int = 0) -> None:
    """Raise `Invalid` if a user other than root and `owner` can change a program."""
    for component in _way_to(path):
        metadata = component.lstat()
        shared = (
            metadata.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not metadata.st_mode & stat.S_ISVTX
        )
        if metadata.st_uid not in (0, owner) or (shared and not stat.S_ISLNK(metadata.st_mode)):
            raise Invalid(
                f"{path} would run with your rights, but other users can change {component}: install the "
                "program where only root or you can write, such as /usr/local for root"
            )


def _way_to(path: Path) -> Iterator[Path]:
    """Yield every path on which the resolution of a path depends.

    These are the path itself, its parents, and the targets of links.
    """
    for component in (path, *path.parents):
        yield component
        if component.is_symlink():
            yield from _way_to(component.parent / component.readlink())


def _check_ours(unit: Path) -> None:
    first = unit_text(unit.name, []).partition("\n")[0]
    if unit.exists() and not unit.read_text().startswith(first):
        raise Refused(
            f"{unit} exists but was not created by steward install: move or delete it and try again"
        )


def _unit_location(*, user: bool) -> UnitLocation:
    """Return the location for the units. Raises `Refused` if this user cannot install units."""
    if not _RUNS_HERE.is_dir():
        raise Refused(
            'systemd is not the init process of this host: start the daemon with "steward agent"'
        )
    if user:
        if os.geteuid() == 0:
            raise Refused("--user is not for root: run the command without it")
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return UnitLocation(Path(base) / "systemd/user", of_user=True)
    if os.geteuid() != 0:
        raise Refused("only root can install for the system: use sudo, or the option --user")
    if any((directory / SERVICE).exists() for directory in _OF_PACKAGES):
        raise Refused(
            "a package has installed the service: start it with systemctl enable --now steward, "
            "remove it with apt"
        )
    return UnitLocation(_OF_THE_SYSTEM)


def _systemctl(location: UnitLocation) -> Systemctl:
    def ask(verb: str, unit: str) -> None:
        _run([*location.systemctl.split(), "--quiet", *verb.split(), *([unit] if unit else [])])

    return ask


def _run(words: Sequence[str]) -> None:
    """Run a systemd command. Raises `Refused` if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  # our own words
    except OSError as error:
        raise Refused(f"{shlex.join(words)} failed: {error.strerror}") from error
    if done.returncode:
        raise Refused(f"{shlex.join(words)} failed: {done.stderr.strip() or done.returncode}")
