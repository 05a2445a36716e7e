"""Start of the daemon: its options, and its settings.

This module reads the usual forms of options itself. Click takes 1.2 MiB and a tenth of the time of
a start, so it is imported only for other arguments, such as `--help` and errors (`agent.py`).
"""

import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from daemon.config.loading import DEFAULT_FILE, PREFIX, load_settings, split_pairs
from storage.errors import StewardError

# The options of `agent.py`, by the names of their settings.
FLAGS = frozenset({"dev", "dev_cloud", "acl", "ask_passphrase", "allow_plain_text"})
VALUES = frozenset(
    {
        *("config", "user", "data_dir", "key_file", "bind", "tls_cert", "tls_key"),
        *("tls_client_ca", "socket", "operator_group", "port", "region", "datacenter"),
        *("node_name", "node_class", "node_pool", "cpu_total_mhz", "memory_total_mb"),
        *("disk_total_mb", "audit_file", "log_level", "log_format"),
    }
)
REPEATED = "node_meta"


def parse_options(arguments: Sequence[str]) -> dict[str, object] | None:
    """Return the values of options; None if Click must read the arguments.

    >>> parse_options(["--dev", "--port=0", "--node-meta", "a=b"])
    {'dev': True, 'port': '0', 'node_meta': ('a=b',)}
    >>> parse_options(["--dev", "--port"]) is None
    True
    """
    options: dict[str, object] = {}
    repeated: list[str] = []
    words = iter(arguments)
    for word in words:
        name, has_value, value = str.partition(word, "=")
        name = name.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or "_" in word.partition("=")[0]:
            return None
        if name in FLAGS and not has_value:
            options[name] = True
            continue
        if name not in VALUES and name != REPEATED:
            return None
        if not has_value:
            value = next(words, "-")
            if value.startswith("-"):
                return None
        if name == REPEATED:
            repeated.append(str(value))
        else:
            options[name] = str(value)
    return {**options, REPEATED: tuple(repeated)} if repeated else options


def start_daemon(arguments: list[str], channel: socket.socket) -> NoReturn:
    """Run the daemon with these arguments; exit with status 78 if an argument is invalid.

    `channel` is the socket to the launcher process.
    """
    options = parse_options(arguments)
    if options is None:
        from daemon.process.agent import parse_with_click

        options = parse_with_click(arguments)
    run_agent(options, channel)


def run_agent(options: dict[str, object], channel: socket.socket) -> NoReturn:
    """Run the daemon with these options, and exit with its status."""
    from daemon.process.main import EXIT_CONFIG, run

    settings = dict(options)
    given, pairs = settings.pop("config", None), settings.pop(REPEATED, ())
    file = Path(str(given)) if given is not None else _file_of_environment()
    try:
        if pairs:
            settings[REPEATED] = split_pairs(list(pairs), "--node-meta")  # type: ignore[call-overload]  # a tuple of texts
        # A reload calls this again when the daemon may already run as another user.
        read = partial(load_settings, file, dict(os.environ), settings, is_root=os.geteuid() == 0)
        config = read()
    except StewardError as error:
        print(f"steward: {error}", file=sys.stderr)  # noqa: T201  # the message for the user
        sys.exit(EXIT_CONFIG)
    sys.exit(run(config, read, channel, file or DEFAULT_FILE))


def _file_of_environment() -> Path | None:
    name = os.environ.get(f"{PREFIX}CONFIG")
    return Path(name) if name else None
