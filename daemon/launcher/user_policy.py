"""The users of tasks: users of this host, checked against the policy.

Names are resolved here, so that no other process decides which ID a name has.
"""

import grp
import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from daemon.launcher.alloc_uids import AllocUids
from daemon.launcher.channel import Refusal
from daemon.launcher.messages import LauncherPolicy, Owner, Span, Whose

EVERYBODY = "*"  # in a list: all users except root and the daemon's own
NOBODY = "nobody"  # default user for exec, if there are no user IDs for allocations
OWN_HOME = "/local"  # home directory of the user of an allocation, as its tasks see it
_OWN = "task"  # prefix of the name of such a user
_ROOT = 0
_MASK = 0o022  # new files and directories are not writable by others
_UNKNOWN = "failed driver config validation: failed to identify user"


class User(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a task."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    is_account: bool = True  # whether the host has an account for it

    @property
    def owner(self) -> Owner:
        """Return the user ID and the group ID."""
        return self.uid, self.gid


class UserPolicy:
    """The permitted users of one policy.

    `uids` are the user IDs of allocations, or None as long as they are not loaded.
    """

    uids: AllocUids | None = None

    def __init__(self, policy: LauncherPolicy, own: int | None = None) -> None:
        """Initialize; a process other than the launcher passes the launcher's user ID as `own`."""
        self._policy, self._launcher_uid = policy, own

    @property
    def own(self) -> int:
        """Return the launcher's user ID."""
        return os.geteuid() if self._launcher_uid is None else self._launcher_uid

    def of_task(self, driver: Whose, name: str, allocation: str) -> User | None:
        """Return the user of a task; None for the launcher's own user.

        Raises `Refusal` or `OSError`.
        """
        if os.geteuid() == _ROOT and not name:
            if driver == "exec" and (own := self._separate_user(allocation)) is not None:
                return own
            name = NOBODY if driver == "exec" else self._policy.usual
        user = self.find(driver, name) if name else None
        if user is None and driver == "exec" and os.geteuid() == _ROOT:
            raise Refusal(f'user "{name}" is the daemon\'s own user, and cannot run exec tasks')
        return user

    def owner(self, driver: Whose, name: str, allocation: str) -> Owner | None:
        """Return the owner of a task's files; None for the launcher.

        The launcher also owns the files if the user is not permitted.
        """
        if driver == "anybody":
            return -1, -1
        if driver == "ours":
            return self.daemon
        with suppress(Refusal):  # the launcher then owns them
            user = self.of_task(driver, name, allocation)
            return user.owner if user else None
        return None

    @property
    def daemon(self) -> Owner | None:
        """Return the daemon's user and group; None if the launcher has the same user."""
        if (uid := self._policy.owner) == os.geteuid():
            return None
        try:
            return uid, pwd.getpwuid(uid).pw_gid
        except KeyError:  # an ID without an account
            return uid, uid

    @property
    def guest(self) -> Owner | None:
        """Return the user who runs containers; None for the launcher's own user."""
        return None if self._policy.podman else self.daemon

    def find(self, driver: str, name: str) -> User | None:
        """Return a user by name or ID; None for the launcher's own user.

        Raises `Refusal`, and `OSError` if there is no free descriptor for the lookup.
        """
        try:
            entry = _entry(name)
        except (KeyError, OverflowError, ValueError):
            os.close(os.eventfd(0))  # without a descriptor, the library knows no user
            raise Refusal(f'{_UNKNOWN} "{name}": user: unknown user {name}') from None
        if self.own != _ROOT and entry.pw_uid != self.own:
            own = pwd.getpwuid(self.own).pw_name
            raise Refusal(f'{_UNKNOWN} "{name}": the agent runs as {own} and cannot become {name}')
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        if self.own == _ROOT and (reason := self._reason(driver, entry, groups)):
            raise Refusal(f'user "{name}" cannot run tasks of {driver}: {reason}')
        if entry.pw_uid == self.own:
            return None
        return User(
            name=entry.pw_name,
            uid=entry.pw_uid,
            gid=entry.pw_gid,
            groups=tuple(groups),
            home=entry.pw_dir,
        )

    def of_program(self, name: str) -> User | None:
        """Return the user of a program; None for the launcher's own user.

        If `name` is empty, return the daemon's user. Raises `Refusal` for root, unless the daemon
        is root.
        """
        if name:
            user = self.find(next(iter(self._policy.checked), "exec"), name)
        elif (owner := self.daemon) is None:
            user = None
        else:
            user = User(name="", uid=owner[0], gid=owner[1], groups=_groups(owner), home="/")
        if user is None and _ROOT == os.geteuid() != self._policy.owner:
            raise Refusal(
                'root cannot run programs of a cluster: name another user, or set user = "root"'
            )
        return user

    def check_owner(self, owner: Owner) -> None:
        """Raise `Refusal` for a user or group that must not own task files."""
        uid, gid = owner
        if uid == _ROOT and not self._policy.permits_root:
            raise Refusal("no file of a task may belong to root: raw_exec_root is off")
        if uid == self._policy.owner != os.geteuid():
            raise Refusal(f"no file of a task may belong to user {uid}, the agent's own")
        if _is_in(uid, self._policy.denied_uids) or _is_in(gid, self._policy.denied_gids):
            raise Refusal(f"denied_host_uids or denied_host_gids contains {uid}:{gid}")

    def _reason(self, driver: str, entry: pwd.struct_passwd, groups: Sequence[int]) -> str:
        """Return why a user must not run tasks, or an empty string."""
        policy, uid = self._policy, entry.pw_uid
        everyone = {entry.pw_gid, *groups}
        is_named = _names((NOBODY, policy.usual, *policy.users), entry, everyone)
        if driver in policy.checked and _names(policy.denied, entry, everyone):
            return "user_denylist contains it; choose another user"
        if _is_in(uid, policy.denied_uids):
            return f"denied_host_uids contains its uid {uid}; choose another user"
        if denied := sorted(gid for gid in everyone if _is_in(gid, policy.denied_gids)):
            return f"denied_host_gids contains its group {denied[0]}; choose another user"
        if uid == _ROOT:
            needed = "name another user, or set raw_exec_root = true in the agent's configuration"
            return "" if policy.permits_root else f"it is root; {needed}"
        if is_named or (EVERYBODY in policy.users and uid != policy.owner):
            return ""
        why = "it is the agent's own" if uid == policy.owner else "task_users does not contain it"
        return f"{why}; choose another user, or add it to task_users"

    def _separate_user(self, allocation: str) -> User | None:
        """Return the separate user of an allocation, or None.

        Raises the same errors as `of_task`.
        """
        if self.uids is None or (uid := self.uids.of(allocation)) is None:
            return None
        name = f"{_OWN}{uid}"
        return User(name=name, uid=uid, gid=uid, groups=(uid,), home=OWN_HOME, is_account=False)


@contextmanager
def being(user: Owner, groups: Sequence[int] = ()) -> Iterator[None]:
    """Act with the privileges and the file ownership of a user. Raises `OSError`."""
    mask = os.umask(_MASK)
    try:
        if os.geteuid() != _ROOT or user[0] == _ROOT:
            yield
            return
        group, before = os.getegid(), os.getgroups()
        os.setgroups(groups)
        os.setegid(user[1])
        os.seteuid(user[0])
        try:
            yield
        finally:
            os.seteuid(_ROOT)
            os.setegid(group)
            os.setgroups(before)
    finally:
        os.umask(mask)


def _entry(name: str) -> pwd.struct_passwd:
    """Return the account of a user by name or ID.

    Raises `KeyError` for an unknown user, and `ValueError` for an impossible name.
    """
    return pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)


def _groups(owner: Owner) -> tuple[int, ...]:
    """Return the groups of an account; empty for an ID without an account."""
    with suppress(KeyError):  # the ID has no account
        return tuple(os.getgrouplist(pwd.getpwuid(owner[0]).pw_name, owner[1]))
    return ()


def _is_in(number: int, spans: Sequence[Span]) -> bool:
    return any(first <= number <= last for first, last in spans)


def _names(listed: Sequence[str], entry: pwd.struct_passwd, groups: set[int]) -> bool:
    """Return whether a list contains a user: by name, ID, or group after `@`."""
    for name in listed:
        # A name without an account matches no user.
        with suppress(KeyError, OverflowError, ValueError):
            if name.startswith("@"):
                gid = int(name[1:]) if name[1:].isdecimal() else grp.getgrnam(name[1:]).gr_gid
                if gid in groups:
                    return True
            elif name and _entry(name).pw_uid == entry.pw_uid:
                return True
    return False
