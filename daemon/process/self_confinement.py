"""Confinement of the daemon before it opens its store: rights, system calls and files.

The confinement happens once: before the first thread starts, and after everything that needs root's
rights was opened. A daemon that stays root keeps its capabilities, because the features that need
root need them.
"""

import logging
import os
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from daemon.config.settings import Settings
from daemon.confinement import bpf, filters, kernel
from daemon.launcher.hardening import disable_core_dumps
from daemon.launcher.messages import SandboxSupport
from daemon.process.service_account import (
    ROOT,
    ServiceAccount,
    become,
    program_directories,
    why_root,
)

_log = logging.getLogger("steward")

_PROCESSES = 512  # limit for the daemon's user, including threads and notification commands
# Files that every daemon reads, if the host has them.
_READABLE = (
    *("/etc", "/usr", "/lib", "/lib64", "/bin", "/sbin", "/proc", "/sys"),
    *("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"),
    # Possible targets of the link /etc/resolv.conf, and sockets of name services.
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd"),
    "/var/lib/sss/mc",
)
# Below /sys/fs/cgroup, the daemon owns only the cgroups of tasks, which it received before.
_WRITABLE = ("/dev/null", "/sys/fs/cgroup")
_CERTIFICATES = (
    *("tls_cert", "tls_key", "tls_client_ca"),
    *("wrapper_tls_cert", "wrapper_tls_key", "wrapper_ca"),
)


def confine(
    config: Settings,
    account: ServiceAccount | None,
    also: Sequence[Path] = (),
    *,
    programs: bool = False,
) -> None:
    """Switch to the daemon's user if it has one, and give up all rights that are not needed.

    `also` lists files that are read later and directories that are written to. With `programs`, the
    daemon may execute programs. Raises `OSError` if the kernel rejects a call that every kernel
    supports.
    """
    # SQLite writes sort data that exceeds memory to a file, which must be in a writable directory.
    os.environ["SQLITE_TMPDIR"] = str(config.store_dir)
    if account is None and os.geteuid() == ROOT:
        if not config.dev:
            _log.warning(
                "the daemon runs as root, so an attacker who exploits a flaw in it"
                " becomes root: %s",
                why_root(config),
            )
        return
    folders = [str(path) for path in also if os.path.isdir(path)]
    files = [str(path.parent) for path in also if not os.path.isdir(path)]
    # These rules are created before the user changes, because the new user may not have access to
    # some of the paths.
    rules = kernel.rules_of_files((*writable(config), *folders), (*readable(config), *files))
    if account is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (_PROCESSES, _PROCESSES))
        kernel.bound_capabilities()
        become(account)
        disable_core_dumps()  # a change of the user resets it
    kernel.give_up_new_privileges()
    kernel.give_up_capabilities()
    if rules is None:
        _log.warning(
            "this kernel has no Landlock: only file permissions limit the daemon's access to files"
        )
    else:
        kernel.keep_to(rules)
    try:
        kernel.filter_calls(filters.of_daemon(bpf.host_architecture(), programs=programs))
    except bpf.Unknown as error:
        _log.warning("the daemon has no system call filter: %s", error)


def starts_programs(
    config: Settings, support: Callable[[], SandboxSupport], *, is_separated: bool
) -> bool:
    """Return whether the daemon itself must execute programs.

    If the daemon and its launcher have different users, the launcher runs notification commands.
    The daemon runs git itself only if the host has no sandbox for git. `support` returns the
    sandbox support of the host.
    """
    has_git = shutil.which("git") is not None
    if not is_separated:
        return bool(config.notify_commands) or has_git
    return has_git and bool(support().walls)


def writable(config: Settings) -> Iterator[str]:
    """Yield the paths below which the daemon may write."""
    yield from _WRITABLE
    yield str(config.store_dir)
    if config.snapshot_dir != Path():
        yield str(config.snapshot_dir)
    if config.audit_file != Path():
        yield str(config.audit_file.parent)


def readable(config: Settings) -> Iterator[str]:
    """Yield the paths below which the daemon may read, if its user has permission."""
    yield from _READABLE
    yield from program_directories()
    for path in (getattr(config, name) for name in _CERTIFICATES):
        if path != Path():
            # A renewed certificate is often a link to another directory.
            yield from {str(path.parent), os.path.dirname(os.path.realpath(path))}
    yield from config.artifact_paths
    for notify_receiver in config.notify_receivers.values():
        # A secret is often replaced by a new file, or is a link to another directory.
        for file in filter(None, (notify_receiver.secret_file, notify_receiver.ca_file)):
            yield from {os.path.dirname(file), os.path.dirname(os.path.realpath(file))}
    if config.otlp_token_file != Path():
        file = str(config.otlp_token_file)
        yield from {os.path.dirname(file), os.path.dirname(os.path.realpath(file))}
