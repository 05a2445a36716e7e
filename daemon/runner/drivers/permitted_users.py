"""Permitted users of tasks on clusters, where the launcher does not check them."""

from daemon.config.settings import Settings
from daemon.launcher.channel import Refusal
from daemon.launcher.messages import LauncherPolicy
from daemon.launcher.user_policy import User, UserPolicy
from daemon.runner.core.driver import StartFailed
from daemon.runner.core.launcher_policy import policy_of


class TaskUsers:
    """The rules of one daemon.

    `usual` is the user of tasks that name none; empty means the daemon's user.
    """

    def __init__(self, policy: LauncherPolicy) -> None:
        self.usual = policy.usual
        self._users = UserPolicy(policy)

    def find(self, driver: str, name: str) -> User | None:
        """Return the user by name or ID; None for the daemon's own user.

        Raises `StartFailed` when the user does not exist or is not permitted.
        """
        try:
            return self._users.find(driver, name)
        except Refusal as error:
            raise StartFailed(str(error)) from None


EVERYBODY = TaskUsers(
    policy_of(Settings(dev=True, task_uids="none"), owner=0, lines="")
)  # without any rule


def of(config: Settings) -> TaskUsers:
    """Return the rules of a configuration; outside of development mode they are restrictive."""
    return TaskUsers(policy_of(config, owner=0, lines=""))
