"""The OS user that the daemon switches to before it opens its store.

Only a daemon started by root switches its user. A development daemon never does. Without the
setting `user`, the daemon switches to `steward` if the host has that account.
"""

import grp
import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from daemon.config.settings import Settings
from storage.errors import Invalid

NAME = "steward"  # account that the packages create
ROOT = 0
_ADD = f"useradd --system --user-group --no-create-home --shell /usr/sbin/nologin {NAME}"


class ServiceAccount(NamedTuple):
    """An OS user with its group and its supplementary groups on this host."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def find_account(config: Settings) -> ServiceAccount | None:
    """Return the user that the daemon switches to, or None if it keeps its user. Raises `Invalid`."""
    own = os.geteuid()
    if config.dev:
        return None
    if not config.user:
        usual = None if own != ROOT else _known(NAME)
        return None if usual is None or unreachable(usual, config) else usual
    account = _known(config.user)
    if account is None:
        raise Invalid(
            f"user = {config.user!r}: this user does not exist on this host; create it"
            f"{f' ({_ADD})' if config.user == NAME else ''} or name another user; "
            'with user = "root" the daemon stays root'
        )
    if own not in (ROOT, account.uid):
        raise Invalid(
            f"user = {config.user!r}: only root can become another user, and this process runs as "
            f"user {own}; start the daemon as root, or leave the setting out"
        )
    if account.uid != own and (reason := unreachable(account, config)):
        raise Invalid(f"user = {config.user!r}: {reason}")
    return None if account.uid == own else account


def why_root(config: Settings) -> str:
    """Return why the daemon keeps root's rights, and how to change that, if possible."""
    if config.user:
        return f"user = {config.user!r}"
    if usual := _known(NAME):
        return unreachable(usual, config)
    return f"this host has no user {NAME}; create it with: {_ADD}"


def unreachable(account: ServiceAccount, config: Settings) -> str:
    """Return why a user cannot access the program or the data; empty if access is possible."""
    above = next(
        (parent for parent in (config.data_dir, *config.data_dir.parents) if parent.exists()), None
    )
    present = [directory for directory in program_directories() if os.path.exists(directory)]
    with being(account):
        for directory in present:
            if not os.access(directory, os.R_OK, effective_ids=True):
                return (
                    f"{account.name} cannot read the program in {directory}: install it where all users "
                    'can read, such as /usr/local, or set user = "root"'
                )
        # The daemon changes the data directory itself at the start, but never its parents.
        for parent in above.parents if above else ():
            if not os.access(parent, os.X_OK, effective_ids=True):
                return (
                    f"{account.name} cannot pass through {parent} to the data directory: let others pass "
                    f'(chmod o+x {parent}), or set user = "root"'
                )
    return ""


def usual_account() -> ServiceAccount | None:
    """Return the account that the packages create, if this host has it."""
    return _known(NAME)


def program_directories() -> list[str]:
    """Return the directories of the program: modules imported later are read from there."""
    own = Path(__file__).parent.parent.parent
    directories = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(own), *sys.path}
    if bundle := getattr(sys, "_MEIPASS", ""):
        directories.add(bundle)
    return sorted(directory for directory in directories if directory not in ("", "/"))


def _known(name: str) -> ServiceAccount | None:
    """Return a user of this host by name or number. A numeric ID needs no account."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        if name.isdecimal() and 0 < int(name) < 2**32 - 1:
            return ServiceAccount(name, int(name), int(name))
        return None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return ServiceAccount(entry.pw_name, entry.pw_uid, entry.pw_gid, tuple(groups))


def of_owner(stat_result: os.stat_result) -> ServiceAccount:
    """Return the owner of a file, without supplementary groups."""
    return ServiceAccount(str(stat_result.st_uid), stat_result.st_uid, stat_result.st_gid)


def group_name(account: ServiceAccount) -> str:
    """Return the name of a user's group, or its number if it has no name."""
    try:
        return grp.getgrgid(account.gid).gr_name
    except KeyError:
        return str(account.gid)


@contextmanager
def being(account: ServiceAccount) -> Iterator[None]:
    """Use a user's effective rights inside the block, if this process is root. Raises `OSError`."""
    if os.geteuid() != ROOT or account.uid == ROOT:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    os.setgroups(account.groups)
    os.setegid(account.gid)
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(ROOT)
        os.setegid(group)
        os.setgroups(groups)


def become(account: ServiceAccount) -> None:
    """Switch to a user permanently: root's rights cannot be regained. Raises `OSError`."""
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
