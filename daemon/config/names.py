"""Validation of the settings that hold a name, an address or a path as free text.

The rules apply to every source: the file, the environment and the command line. A text setting without a
rule is an exception, and `tests/unit/test_config.py` names its reason.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from daemon.config.settings import Settings


class _Rule(NamedTuple):
    """The form of a text. An empty text means the default, unless the setting `is_needed`."""

    form: re.Pattern[str]
    hint: str
    is_needed: bool = False


# A job matches datacenters with patterns, and messages separate names by spaces.
_NAME = re.compile(r"[^\s\x00-\x1f\x7f*?\[\]{},\"'/]{1,128}")
_NAME_HINT = "write 1 to 128 characters without spaces, commas, slashes, quotes, brackets, * and ?"
_TITLE = re.compile(r"(?! )[^\x00-\x1f\x7f-\x9f]{1,256}(?<! )")
_TITLE_HINT = "write at most 256 characters on one line, without spaces at either end"
_POOL = re.compile(r"(?!all$)[A-Za-z0-9_-]{1,128}")
_META = re.compile(r"[^\W\d][\w-]*(\.[^\W\d][\w-]*)*")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?")
_HOST_NAME = re.compile(r"\*|[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?")
_HOST_HINT = "write a host name or an address, without scheme and port"
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")
_DRIVER = re.compile(r"[a-z0-9][a-z0-9_-]*")
_PLACE = re.compile(r"/[^\x00-\x1f\x7f]*")
_PODMAN = re.compile(r"none|/[^\x00-\x1f\x7f]*")
_SOCKET = re.compile(r"none|[^\x00-\x1f\x7f]+")
_GROUP = re.compile(r"/?[A-Za-z0-9_@:.\\-]+(?:/[A-Za-z0-9_@:.\\-]+)*/?")
_URL = re.compile(r"https?://(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?(?:/[!-~]*)?")
_URL_HINT = "write it as https://HOST or http://HOST:PORT"
_RULES: dict[str, _Rule] = {
    "region": _Rule(_NAME, _NAME_HINT, True),
    "datacenter": _Rule(_NAME, _NAME_HINT, True),
    "node_name": _Rule(_TITLE, _TITLE_HINT),
    "node_class": _Rule(_TITLE, _TITLE_HINT),
    "node_pool": _Rule(
        _POOL, "write 1 to 128 letters, digits, - and _, and not all, which means all pools", True
    ),
    "node_meta": _Rule(
        _META, "write letters, digits, - and _, in parts that dots separate and letters begin", True
    ),
    "bind": _Rule(_HOST, _HOST_HINT, True),
    "issuer_bind": _Rule(_HOST, _HOST_HINT),
    "wrapper_bind": _Rule(_HOST, _HOST_HINT),
    "host_names": _Rule(_HOST_NAME, _HOST_HINT, True),
    "user": _Rule(_ACCOUNT, "write the name of a user of this host"),
    "operator_group": _Rule(_ACCOUNT, "write the name of a group of this host"),
    "raw_exec_user": _Rule(_ACCOUNT, "write the name or number of a user of this host"),
    "user_checked_drivers": _Rule(_DRIVER, "write names of drivers, such as exec", True),
    "artifact_paths": _Rule(_PLACE, "write the absolute path of a directory", True),
    "socket": _Rule(_SOCKET, "write the path of a socket, or none"),
    "podman_socket": _Rule(_PODMAN, "write an absolute path, or none"),
    "cgroup_parent": _Rule(_GROUP, "write the path of a cgroup, such as /steward-tasks.slice"),
    "cloud_directory_url": _Rule(_URL, _URL_HINT),
    "cloud_resource_manager_url": _Rule(_URL, _URL_HINT),
    "cloud_graph_url": _Rule(_URL, _URL_HINT),
    "cloud_metadata_url": _Rule(_URL, _URL_HINT),
}


def name_errors(config: Settings) -> Iterator[str]:
    """Yield the faults of names, addresses and paths, each with the value and the fix."""
    for setting, rule in _RULES.items():
        value = getattr(config, setting)
        for text in [value] if isinstance(value, str) else value:
            if (text or rule.is_needed) and not rule.form.fullmatch(text):
                named = f"{setting} = {text!r}" if text is value else f"{setting}: {text!r}"
                yield f"{named}: {rule.hint}"
            elif setting == "cgroup_parent" and ".." in text.split("/"):
                yield f"{setting} = {text!r}: {rule.hint}, without .."
