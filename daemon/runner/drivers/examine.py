"""Check a task against this host before placement: driver configuration, command, and user."""

import os
import pwd
from collections.abc import Mapping
from importlib import import_module

import msgspec

from daemon.runner.drivers import driver_config
from storage.records.driver import canonical, is_listed
from storage.records.task import Task

# The settings module of each driver; imported when a job first names the driver.
_SETTINGS = {
    "raw_exec": "daemon.runner.drivers.raw_exec:RawExecConfig",
    "exec": "daemon.runner.drivers.exec:ExecConfig",
    "mock_driver": "daemon.runner.drivers.mock:MockConfig",
    "podman": "daemon.runner.drivers.podman.container_spec:PodmanConfig",
}
_HERE = frozenset({"raw_exec", "exec"})  # drivers that run programs of this host


class DriverFindings(msgspec.Struct, frozen=True):
    """The definite errors of a task, and the warnings about it."""

    errors: list[str] = []
    warnings: list[str] = []


def look(task: Task) -> DriverFindings:
    """Return the errors and warnings of a task on this host."""
    name = _SETTINGS.get(canonical(task.driver))
    if name is None:
        return DriverFindings()
    block = task.config or {}
    module, _, settings = name.partition(":")
    record: type[msgspec.Struct] = getattr(import_module(module), settings)
    errors = list(driver_config.faults(record, block))
    return DriverFindings(
        errors, _config_warnings(task, block) if is_listed(task.driver, _HERE) else []
    )


def _config_warnings(task: Task, block: Mapping[str, object]) -> list[str]:
    warnings = []
    command = block.get("command")
    if isinstance(command, str) and _is_missing(command):
        warnings.append(f"this host has no program {command}: install it before the task starts")
    if task.user and "${" not in task.user and not _is_user(task.user):
        warnings.append(f'this host has no user "{task.user}": create the user or name another one')
    return warnings


def _is_missing(command: str) -> bool:
    """Return whether a command is an absolute path that does not exist.

    A path that the daemon has no permission to inspect counts as existing.
    """
    if not command.startswith("/") or "${" in command or "\0" in command:
        return False
    try:
        os.stat(command)
    except (FileNotFoundError, NotADirectoryError):
        return not command.startswith(("/local/", "/alloc/", "/secrets/"))
    except OSError:
        return False
    return False


def _is_user(name: str) -> bool:
    user = name.partition(":")[0]
    try:
        pwd.getpwnam(user)
    except (KeyError, ValueError):
        return user.isdecimal()
    return True
