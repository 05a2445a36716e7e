"""Users that tasks may run as, by the settings of the daemon."""

import os
import pwd
import resource
from contextlib import suppress

import pytest

from daemon.config.settings import Settings
from daemon.runner.core.driver import StartFailed
from daemon.runner.drivers import permitted_users
from storage.errors import is_descriptor_shortage

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs tasks as other users")


@pytest.mark.parametrize(
    ("settings", "user"),
    [
        ({"dev": True}, "root"),
        ({"dev": True}, "daemon"),
        ({}, "nobody"),
        ({"raw_exec_user": "daemon"}, "daemon"),
        ({"task_users": ["daemon"]}, "1"),
        ({"task_users": ["1"]}, "daemon"),
        ({"task_users": ["@daemon"]}, "daemon"),
        ({"task_users": ["@1"]}, "daemon"),
        ({"task_users": ["*"]}, "daemon"),
        ({"task_users": ["daemon"]}, "nobody"),
        ({"raw_exec_root": True}, "root"),
        ({"task_users": ["*"], "denied_host_uids": "0,2-99"}, "daemon"),
        ({"dev": True, "user_denylist": ["daemon"], "user_checked_drivers": ["exec"]}, "daemon"),
    ],
)
def test_user_is_allowed(settings: dict[str, object], user: str) -> None:
    found = permitted_users.of(Settings(**settings)).find("raw_exec", user)
    assert (found.uid if found else 0) == pwd.getpwnam({"1": "daemon"}.get(user, user)).pw_uid


@pytest.mark.parametrize(
    ("settings", "user", "reason"),
    [
        ({}, "daemon", "task_users does not contain it"),
        ({}, "root", "raw_exec_root"),
        ({"task_users": ["*"]}, "root", "raw_exec_root"),
        (
            {"task_users": ["@nosuchgroup", "nosuchuser"]},
            "daemon",
            "task_users does not contain it",
        ),
        ({"task_users": ["*"], "denied_host_uids": "1"}, "daemon", "denied_host_uids"),
        ({"task_users": ["*"], "denied_host_gids": "0-5"}, "daemon", "denied_host_gids"),
        ({"dev": True, "user_denylist": ["daemon"]}, "1", "user_denylist"),
        ({"dev": True, "raw_exec_root": False}, "0", "raw_exec_root"),
    ],
)
def test_user_is_refused_with_the_setting(
    settings: dict[str, object], user: str, reason: str
) -> None:
    with pytest.raises(StartFailed, match=reason):
        permitted_users.of(Settings(**settings)).find("raw_exec", user)


def test_lookup_without_a_free_descriptor_can_be_tried_again() -> None:
    users = permitted_users.of(Settings(dev=True))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    try:
        with suppress(OSError):  # the limit
            while True:
                taken.append(os.eventfd(0))
        with pytest.raises(StartFailed, match="Too many open files") as error:
            users.find("raw_exec", "daemon")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    assert is_descriptor_shortage(error.value.__cause__)
    assert error.value.recoverable
    assert users.find("raw_exec", "daemon") is not None
