"""Permitted users of tasks on clusters: the daemon checks them before the launcher does."""

import os

from daemon.config.settings import Settings
from daemon.launcher.channel import Refusal
from daemon.launcher.messages import LauncherPolicy
from daemon.launcher.user_policy import User, UserPolicy
from daemon.runner.core.driver import StartFailed
from daemon.runner.core.launcher_policy import policy_of

_ROOT = 0


class TaskUsers:
    """The permitted users of tasks on clusters.

    `usual` is the default user of tasks; an empty string means the daemon's user. The parameter
    `own` is the launcher's user ID, by default the daemon's user ID.
    """

    def __init__(self, policy: LauncherPolicy, own: int | None = None) -> None:
        self.usual = policy.usual
        self._users = UserPolicy(policy, own)

    @property
    def is_root(self) -> bool:
        """Return whether the launcher is root, so that tasks can have different users."""
        return self._users.own == _ROOT

    @property
    def is_separated(self) -> bool:
        """Return whether the daemon and the launcher run as different users."""
        return self._users.own != os.geteuid()

    @property
    def own(self) -> set[int]:
        """Return the IDs of the users of the daemon and the launcher."""
        return {self._users.own, os.geteuid()}

    def find(self, driver: str, name: str) -> User | None:
        """Return the user with the name or ID `name`; None means the launcher's own user.

        Raises `StartFailed` when the user does not exist or is not permitted.
        """
        try:
            return self._users.find(driver, name)
        except Refusal as error:
            raise StartFailed(str(error)) from None
        except OSError as error:
            raise StartFailed(f"cannot look up user {name!r}: {error}", recoverable=True) from error


def without_rules(own: int | None = None) -> TaskUsers:
    """Return rules that permit all users of this host; `own` is the launcher's user ID."""
    return TaskUsers(policy_of(Settings(dev=True, task_uids="none"), owner=0, lines=""), own)


ANY_USER = without_rules()


def of(config: Settings, own: int | None = None) -> TaskUsers:
    """Return the permitted users of a configuration; `own` is the launcher's user ID."""
    return TaskUsers(policy_of(config, owner=0, lines=""), own)
