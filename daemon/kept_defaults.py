"""Settings that an upgrade keeps as they were, until the configuration names them."""

import logging
from collections.abc import Mapping

import msgspec

from daemon.config import FIELDS, Config

_log = logging.getLogger("steward")


def in_force(config: Config, kept: Mapping[str, str]) -> Config:
    """Return the settings with the kept values in the place of those that are not given."""
    found = {
        name: msgspec.json.decode(value, type=FIELDS[name].type)
        for name, value in kept.items()
        if getattr(config, name) in (None, [])
    }
    if found:
        lines = ", ".join(f"{name} = {kept[name]}" for name in sorted(found))
        _log.warning(
            "this store is older than the closed defaults of these settings, so what was in force "
            "stays: %s; write each into the configuration as you want it",
            lines,
        )
    return msgspec.structs.replace(config, **found)
