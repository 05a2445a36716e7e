"""Reads the settings from docs/configuration.md, for the example file and the manual page.

`settings.py DOCUMENT` prints the file: every setting with its meaning and its default, commented
out.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from daemon.config.settings import FIELDS

_ROW = re.compile(r"^\| `(\w+)` \| (.+) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
# Settings only for the command line: a service does not run in development mode.
_ELSEWHERE = {"dev", "dev_cloud", "dev_cloud_port", "acl", "ask_passphrase"}
_HEAD = """\
# Settings of the agent: see steward.toml(5). Commented settings show the defaults. After a change:
# systemctl restart steward (tasks keep running).
"""


class Setting(NamedTuple):
    """A setting. `default` is a text for the reader, and `value` is the default in TOML syntax."""

    name: str
    default: str
    meaning: str
    value: str


def settings(document: str) -> Iterator[Setting]:
    """Yield the settings in the order of the document."""
    for name, default, meaning in _ROW.findall(document):
        if (field := FIELDS.get(name)) and name not in _ELSEWHERE:
            plain = _LINK.sub(r"\1", meaning).replace("\\|", "|")
            yield Setting(name, default.strip("`"), plain, _toml(field))


def _toml(field: msgspec.structs.FieldInfo) -> str:
    default = field.default
    if default is msgspec.NODEFAULT:
        default = field.default_factory()
    if isinstance(default, Path):
        default = ""
    if default is None:  # the default depends on `dev`, which a service does not use
        default = False
    return "{}" if default == {} else json.dumps(default)


def commented(document: str) -> str:
    """Return the text of the example settings file, in which all settings are comments."""
    parts = [_HEAD]
    for setting in settings(document):
        default = (
            ""
            if setting.default in (setting.value, setting.value.strip('"'))
            else f" Default: {setting.default}."
        )
        comment = textwrap.fill(
            f"{setting.meaning}.{default}".replace("`", ""), 98, break_on_hyphens=False,
            initial_indent="# ", subsequent_indent="# ",
        )  # fmt: skip
        parts.append(f"{comment}\n#{setting.name} = {setting.value}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(commented(Path(sys.argv[1]).read_text()))
