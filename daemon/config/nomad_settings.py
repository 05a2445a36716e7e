"""Nomad's spelling of settings: `plugin` blocks, options of `client`, and `limits`."""

import re
from collections.abc import Iterator, Mapping

from storage.errors import Invalid

_PLUGIN = {
    "enabled": "raw_exec",
    "denied_host_uids": "denied_host_uids",
    "denied_host_gids": "denied_host_gids",
}
_OPTIONS = {
    "driver.raw_exec.enable": "raw_exec",
    "user.denylist": "user_denylist",
    "user.checked_drivers": "user_checked_drivers",
}
_CLIENT = {name: name for name in ("bridge_network_name", "bridge_network_subnet")}
_BLOCKS = ("plugin", "client", "limits")
_LIMITS = {"http_max_conns_per_client": "connections_per_address"}
_LISTS = frozenset({"user_denylist", "user_checked_drivers"})


# An HCL block with its labels, and optionally the start of a nested block.
_BLOCK = re.compile(
    r'^[ \t]*(\w+)((?:[ \t]+"[\w.-]+"){0,2})[ \t]*\{(?:\s*(\w+)[ \t]*\{)?', re.MULTILINE
)
_EXAMPLE = 'raw_exec = true", or "enabled = true" below "[plugin.raw_exec.config]'


def hint(text: str) -> str:
    """Return how to write HCL or JSON settings in TOML; an empty string if the text is neither."""
    if text.lstrip().startswith("{"):
        return f'; it looks like JSON, but settings are TOML: write "{_EXAMPLE}"'
    match = _BLOCK.search(text)
    if match is None:
        return ""
    name, labels, inside = match.groups()
    path = ".".join(filter(None, (name, *re.findall(r'"([^"]*)"', labels), inside)))
    block = " { ".join(filter(None, (f"{name}{labels}", inside)))
    return f'; it looks like HCL, but settings are TOML: write the block "{block} {{" as "[{path}]"'


def translated(values: Mapping[str, object], origin: str) -> dict[str, object]:
    """Return settings with Nomad's names translated to Steward's.

    Raises `Invalid`; the error begins with the `origin` of the settings.
    """
    translated_values = {name: value for name, value in values.items() if name not in _BLOCKS}
    for written, name, value in _found(values, origin):
        if name in translated_values:
            raise Invalid(f"{origin}: {written} and {name} are the same setting; write one of them")
        is_list = name in _LISTS and isinstance(value, str)
        translated_values[name] = (
            [part.strip() for part in str(value).split(",")] if is_list else value
        )
    return translated_values


def _found(values: Mapping[str, object], origin: str) -> Iterator[tuple[str, str, object]]:
    """Yield the settings in Nomad's spelling: the name as written, Steward's name, the value."""
    client = _table(values.get("client", {}), "client", origin)
    for name in _CLIENT.keys() & client.keys():
        yield f"client.{name}", name, client[name]
    other_values = {name: value for name, value in client.items() if name not in _CLIENT}
    values = {**values, "client": other_values}
    for path, steward_names in (
        (("plugin", "raw_exec", "config"), _PLUGIN),
        (("client", "options"), _OPTIONS),
        (("limits",), _LIMITS),
    ):
        inside: object = values
        for depth, part in enumerate(path):
            outer = _table(inside, ".".join(path[:depth]), origin)
            if depth and (unknown := sorted(outer.keys() - {part})):
                where = ".".join(path[:depth])
                names = ", ".join([part, *(_CLIENT if where == "client" else ())])
                raise Invalid(
                    f"{origin}: unknown setting {f'{where}.{unknown[0]}'!r}; known: {names}"
                )
            inside = outer.get(part, {})
        where = ".".join(path)
        for name, value in _table(inside, where, origin).items():
            if name not in steward_names:
                raise Invalid(
                    f"{origin}: unknown setting {f'{where}.{name}'!r}; known: {', '.join(steward_names)}"
                )
            yield f"{where}.{name}", steward_names[name], value


def _table(value: object, where: str, origin: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise Invalid(f"{origin}: {where} = {value!r}: write it as a table")
    return value
