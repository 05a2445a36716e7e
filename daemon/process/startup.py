"""Startup of the daemon until it gives up root's rights.

This module opens everything that needs root's rights, in this order: the data directory with its
lock, the sockets, the root key and the launcher. Then the daemon switches its user and confines
itself. No thread runs yet, and the store is not open.
"""

import getpass
import logging
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from daemon.acl.rootkey import KeyFile, KeySource, ReadKey, find_key_source
from daemon.acl.seal import check_root_key, fitting
from daemon.config.data_directory import tasks_dir, weak_places
from daemon.config.settings import Settings
from daemon.config.stored_defaults import in_force, stored_settings
from daemon.launcher.client import probe_sandbox, send_hello
from daemon.launcher.messages import HelloReply
from daemon.process.data_dir_migration import prepare
from daemon.process.run_as_owner import as_user, owner_of
from daemon.process.self_confinement import confine, starts_programs
from daemon.process.service_account import ROOT, ServiceAccount, being, find_account
from daemon.process.store_ownership import change_owner
from daemon.process.systemd import inherited_sockets
from daemon.runner.core.launcher_policy import policy_of, subuids
from daemon.web.listeners import ListeningSockets, open_listening_sockets
from storage.errors import StorageUnusable
from storage.store import FILE_NAME, lock

if TYPE_CHECKING:
    from daemon.runner.task_containment import TaskCgroups
    from daemon.runner.task_egress import TaskEgressPolicy

log = logging.getLogger("steward")

_ROOT = ServiceAccount("root", ROOT, 0)


class StartupResult(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the daemon after it gave up root's rights. The store is locked.

    `present` has the current settings, and `given` the settings as they were read. `read` reads the
    settings again. `channel` is the socket to the launcher. `holding` manages the cgroups of tasks.
    `guard` enforces the egress policy.
    """

    present: Settings
    given: Settings
    read: Callable[[], Settings]
    channel: socket.socket
    welcome: HelloReply
    listening_sockets: ListeningSockets
    source: KeySource
    holding: "TaskCgroups"
    guard: "TaskEgressPolicy | None"


@contextmanager
def begin(
    config: Settings, read: Callable[[], Settings], channel: socket.socket, file: Path
) -> Iterator[StartupResult]:
    """Open everything that needs the starting user's rights, then give up these rights.

    `file` is the settings file, which a reload reads again. Raises `StewardError`, `LauncherGone`,
    or `OSError`.
    """
    from daemon.runner.task_containment import guard, hold

    account = find_account(config)
    with ExitStack() as stack:
        data_dir = stack.enter_context(_data_directory(config))
        present = msgspec.structs.replace(config, data_dir=data_dir)
        stack.enter_context(_locked(present.store_dir))
        keys = find_key_source(present, os.environ, getpass.getpass)
        # This comes before the store changes its owner, because data that another user could have
        # written is not trusted.
        check = partial(check_root_key, present.store_dir, keys)
        present = in_force(present, stored_settings(data_dir, present.store_dir, check))
        _settle(present, account)
        sockets = stack.enter_context(
            open_listening_sockets(present, inherited_sockets(os.environ))
        )
        source = _source(keys, present, account)
        owner = (account.uid, account.gid) if account else (os.geteuid(), os.getegid())
        holding = hold(present, owner)
        _permit_traversal(holding.places)
        port = sockets.port.getsockname()[1]
        listening = msgspec.structs.replace(present, port=port)
        guarding = guard(listening, holding)
        search = os.environ.get("PATH", os.defpath)
        policy = policy_of(listening, owner[0], subuids(), holding.named(present), path=search)
        welcome = send_hello(channel, present.alloc_dir, policy)
        is_temporary = config.data_dir == Path()
        programs = starts_programs(
            present, partial(probe_sandbox, channel), is_separated=account is not None
        )
        also = [file, *([data_dir.parent] if is_temporary else [])]
        confine(present, account, also, programs=programs)
        yield StartupResult(
            present=present,
            given=config,
            read=read,
            channel=channel,
            welcome=welcome,
            listening_sockets=sockets,
            source=source,
            holding=holding,
            guard=guarding,
        )


@contextmanager
def _data_directory(config: Settings) -> Iterator[Path]:
    """Create the data directory.

    Without this setting, a development daemon gets a temporary directory.
    """
    if config.data_dir != Path():
        try:
            config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageUnusable(
                f"data_dir = {str(config.data_dir)!r} cannot be created: {error.strerror}; "
                "name another directory with --data-dir"
            ) from error
        _check_places(config)
        prepare(config.data_dir, (config.key_file, config.snapshot_dir))
        with _covered(config.data_dir, config):
            yield config.data_dir
        return
    directory = Path(tempfile.mkdtemp(prefix="steward-dev-"))
    try:
        prepare(directory)
        with _covered(directory, config):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _covered(data_dir: Path, config: Settings) -> Iterator[None]:
    """Mount the task directories with `nosuid` and `nodev`.

    A development daemon unmounts them at the end of the block.
    """
    from daemon.runner.nosuid_mount import cover, unmount

    tasks = tasks_dir(data_dir)
    if os.geteuid() == ROOT and (reason := cover(tasks)):
        log.log(
            logging.INFO if config.dev else logging.WARNING,
            "set-user-ID files and devices are active below %s: cannot mount it with nosuid and nodev: %s",
            tasks,
            reason,
        )
    try:
        yield
    finally:
        if config.dev:
            unmount(tasks)


def _check_places(config: Settings) -> None:
    """Reject a data directory that other users could replace; in development, only warn.

    Raises `StorageUnusable`.
    """
    for fault in weak_places(config.data_dir):
        text = f"data_dir = {str(config.data_dir)!r} is not safe from other users: {fault}"
        if not config.dev:
            raise StorageUnusable(text)
        log.warning("%s", text)


@contextmanager
def _locked(store: Path) -> Iterator[None]:
    """Lock the store until the block ends.

    The lock file is opened with the rights of the store's owner, because its path may be a link.
    """
    with ExitStack() as stack:
        with being(owner_of(store) or _ROOT):
            stack.enter_context(lock(store))
        yield


def _permit_traversal(groups: Iterable[Path]) -> None:
    """Permit the daemon's user to traverse its cgroups, even if a strict umask denied this."""
    for above in {above for group in groups for above in group.parents}:
        mode = stat.S_IMODE(above.stat().st_mode)
        if os.geteuid() == ROOT and not mode & stat.S_IXOTH:
            above.chmod(mode | stat.S_IXGRP | stat.S_IXOTH)


def _settle(config: Settings, account: ServiceAccount | None) -> None:
    """Make the daemon's future user the owner of the store. Raises `StorageUnusable`."""
    if os.geteuid() != ROOT:
        return
    store = config.store_dir
    if change_owner(store, account or _ROOT):
        log.info("%s and its contents now belong to the user %s", store, (account or _ROOT).name)
    if account is None:
        return
    for name in ("snapshot_dir", "audit_file"):
        path = getattr(config, name)
        if path == Path():
            continue
        with being(account):
            can_write = os.access(
                path if path.exists() else path.parent, os.W_OK, effective_ids=True
            )
        if not can_write:
            log.error(
                "%s = %r: the daemon's user %s cannot write there; run: chown %s %s",
                name,
                str(path),
                account.name,
                account.name,
                path,
            )


def _source(source: KeySource, config: Settings, account: ServiceAccount | None) -> KeySource:
    """Return the source of the root key; read the key now if the daemon cannot read it later.

    Raises `StewardError`.
    """
    is_own = account is None and (os.geteuid() == ROOT or config.dev)
    if is_own or not isinstance(source, KeyFile):
        return source
    is_new = not os.path.lexists(config.store_dir / FILE_NAME)
    if not is_new and source.is_being_replaced:
        store = config.store_dir
        keys = ReadKey(source, is_new=False)
        key_number = as_user(owner_of(store), lambda: fitting(store, keys), int)
        source.settle(keys.candidates()[key_number])
    return ReadKey(source, is_new=is_new)
