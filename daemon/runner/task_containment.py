"""Set up the cgroups of all tasks, their limits and the egress policy, before any task starts.

The daemon does this while it is still root. It creates the parent cgroups of the tasks, attaches
the egress policy to these cgroups, and delegates them to the daemon's unprivileged user, as systemd
does with `Delegate=`. Afterwards it creates, limits, freezes and removes child cgroups as an
ordinary user. It cannot change the limits or the policy of the parent cgroups.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from daemon.config.settings import OPEN, Settings
from daemon.runner.drivers import cgroup_v1, cgroup_v2, cgroup_v2_limits
from daemon.runner.drivers.limits import CONTROLLERS, LimitEnforcer, RlimitEnforcer, with_rlimits
from daemon.runner.drivers.process_group import ProcessGroups
from daemon.runner.drivers.process_scan import ProcessScanner

if TYPE_CHECKING:
    from daemon.runner.task_egress import TaskEgressPolicy


class TaskCgroups(msgspec.Struct, frozen=True):
    """The cgroups for tasks without limits, those for tasks with limits, and the limit enforcer."""

    groups: ProcessGroups
    limited: ProcessGroups
    bounds: LimitEnforcer

    @property
    def places(self) -> list[Path]:
        """Return the parent cgroups that track the processes of tasks."""
        return cgroup_v2.mount_points(self.groups.parent, self.limited.parent)

    @property
    def above(self) -> list[Path]:
        """Return all parent cgroups of tasks, including those that only enforce limits."""
        return [*self.places, *self.bounds.above]

    def named(self, config: Settings) -> dict[str, list[str]]:
        """Return the fields of the launcher's policy that list parent cgroups, by name.

        One field lists the parent cgroups of all tasks. Each other field lists those that the tasks
        of one driver enter.
        """
        limited = [*cgroup_v2.mount_points(self.limited.parent), *self.bounds.above]
        raw = limited if config.raw_exec_limits else cgroup_v2.mount_points(self.groups.parent)
        cgroups_by_name = {"groups": self.above, "raw_exec_groups": raw, "exec_groups": limited}
        return {name: [*map(str, cgroups)] for name, cgroups in cgroups_by_name.items()}

    def release(self) -> None:
        """Remove the cgroups of all tasks, if no task is running."""
        self.groups.release()
        self.limited.release()
        self.bounds.release()


def hold(config: Settings, owner: tuple[int, int]) -> TaskCgroups:
    """Set up the parent cgroups for a daemon that will run as the user and group `owner`."""
    tree = cgroup_v2.find(config.groups_of)
    groups: ProcessGroups = ProcessScanner()
    if tree and not _delegation_error(tree, owner):
        groups = tree
    limited, bounding = _limits(groups, config, owner)
    return TaskCgroups(groups, limited, bounding)


def guard(config: Settings, holding: TaskCgroups) -> "TaskEgressPolicy | None":
    """Set up the configured egress policy for all tasks; return None if none is configured.

    The policy contains the daemon's own ports, so call this after they are open.
    """
    if config.task_egress == OPEN and not any(map(cgroup_v2.is_guarded, holding.places)):
        return None
    from daemon.runner.task_egress import (
        guarded,  # imported late, because few configurations use it
    )

    return guarded(config, holding.places)


def _limits(
    groups: ProcessGroups, config: Settings, owner: tuple[int, int]
) -> tuple[ProcessGroups, LimitEnforcer]:
    """Return the process tracking for tasks with limits, and their limit enforcer."""
    tree = cgroup_v2_limits.own_tree()
    enforcer_or_reason = cgroup_v2_limits.find(
        config.groups_of, config.cgroup_parent, tree, cgroup_v2_limits.CgroupFiles()
    )
    if isinstance(enforcer_or_reason, cgroup_v2_limits.CgroupV2Enforcer):
        if not (found_trouble := _delegation_error(enforcer_or_reason, owner)):
            return enforcer_or_reason, enforcer_or_reason
        enforcer_or_reason = f"cgroup v2: {found_trouble}"
    reasons = dict.fromkeys(
        CONTROLLERS, f"{enforcer_or_reason}, and the daemon cannot create a cgroup of version 1"
    )
    old = cgroup_v1.find(config.groups_of, reasons)
    return groups, RlimitEnforcer(with_rlimits({}), reasons) if _delegation_error(
        old, owner
    ) else old


def _delegation_error(limiter: ProcessGroups | LimitEnforcer, owner: tuple[int, int]) -> str:
    """Create the parent cgroups for a user; return the error or an empty string."""
    try:
        limiter.delegate(owner)
    except OSError as error:
        return str(error)
    return ""
