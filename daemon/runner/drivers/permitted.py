"""Users that tasks of `exec` and `raw_exec` may run as, where the daemon is root."""

import grp
import os
import pwd
from contextlib import suppress

import msgspec

from daemon.config import Config
from daemon.runner.drivers.driver import StartFailed
from daemon.runner.drivers.shim import User
from daemon.runner.drivers.users import entry_of, find_user
from storage.records.numbers import Ranges, ranges, whole

ANYBODY = "*"  # in a list: every user but root
NOBODY = "nobody"
_ROOT = 0
_CHECKED = ("exec", "raw_exec")  # whose users `user_denylist` is about


class TaskUsers(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one daemon; without any, a task may run as everybody.

    `usual` is whom a task of raw_exec runs as that names no user; empty for the daemon's own.
    `denied` holds for the drivers in `checked`.
    """

    listed: tuple[str, ...] = (ANYBODY,)
    usual: str = ""
    root: bool = True
    denied: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    denied_uids: Ranges = ()
    denied_gids: Ranges = ()

    def find(self, driver: str, name: str) -> User | None:
        """Return the user of that name or number; None when it is the daemon's own.

        Raises `StartFailed` when there is no such user, or no task may run as that one.
        """
        found = find_user(name)
        if os.geteuid() == _ROOT and (reason := self._refusal(driver, entry_of(name))):
            raise StartFailed(f'user "{name}" may run no task of {driver}: {reason}')
        return found

    def _refusal(self, driver: str, entry: pwd.struct_passwd) -> str:
        groups = {entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)}
        if driver in self.checked and _names(self.denied, entry, groups):
            return "user_denylist names it; choose another user"
        if any(entry.pw_uid in one for one in self.denied_uids):
            return f"denied_host_uids holds its uid {entry.pw_uid}; choose another user"
        if found := sorted(gid for gid in groups if any(gid in one for one in self.denied_gids)):
            return f"denied_host_gids holds its group {found[0]}; choose another user"
        if entry.pw_uid == _ROOT:
            needed = "name another user, or set raw_exec_root = true in the agent's configuration"
            return "" if self.root else f"it is root; {needed}"
        if ANYBODY in self.listed or _names((NOBODY, self.usual, *self.listed), entry, groups):
            return ""
        return "task_users does not name it; choose another user, or add it to that setting"


EVERYBODY = TaskUsers()


def of(config: Config) -> TaskUsers:
    """Return the rules of a configuration: closed ones outside of development."""
    root = config.permits_root
    return TaskUsers(
        listed=config.permitted_users,
        usual=config.raw_exec_user or ("" if root else NOBODY),
        root=root,
        denied=tuple(config.user_denylist),
        checked=tuple(config.user_checked_drivers) or _CHECKED,
        denied_uids=ranges(config.denied_host_uids),
        denied_gids=ranges(config.denied_host_gids),
    )


def _names(listed: tuple[str, ...], entry: pwd.struct_passwd, groups: set[int]) -> bool:
    """Return whether a list names a user: by a name, a number, or a group after `@`."""
    for name in listed:
        with suppress(KeyError, ValueError):  # a name that this machine does not know is nobody's
            if name.startswith("@"):
                group = name[1:]
                gid = whole(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
                if gid in groups:
                    return True
            elif name and entry_of(name).pw_uid == entry.pw_uid:
                return True
    return False
