"""Loading of the settings: a file, the environment, and the command line, which overrides both.

An unknown setting, a wrong type or a contradiction is an error. The message names the setting, the
value and the source.
"""

import os
import re
import socket
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import NamedTuple

import msgspec

from daemon.config import host_resources, pools
from daemon.config.nomad_settings import hint, translated
from daemon.config.settings import (
    DISK_FAIL,
    DISK_NOTE,
    DISK_OFF,
    FIELDS,
    GUARDED,
    OPEN,
    SOCKET_NAME,
    Settings,
    default_data_dir,
    is_loopback,
    task_numbers,
)
from storage.errors import Invalid
from storage.records.numbers import ranges

PREFIX = "STEWARD_"
DEFAULT_FILE = Path("/etc/steward/steward.toml")
USUAL_SOCKET = Path("/run/steward") / SOCKET_NAME
# Variables with the prefix that are not settings: those of the command line, and the path of the
# file.
_NO_SETTINGS = frozenset(
    PREFIX + name
    for name in (
        "CONFIG",
        "ADDR",
        "TOKEN",
        "TOKEN_FILE",
        "NAMESPACE",
        "HTTP_AUTH",
        "CACERT",
        "CAPATH",
        "CLIENT_CERT",
        "CLIENT_KEY",
        "TLS_SERVER_NAME",
        "SKIP_VERIFY",
        "CLI_SHOW_HINTS",
    )
)
_OF_JOB_FILES = PREFIX + "VAR_"  # values for variables of a job file
_FILES = [name for name, field in FIELDS.items() if field.type is Path and name != "data_dir"]
_CLAIM = re.compile(
    r"(?!nomad_|(?:iss|sub|aud|iat|nbf|exp|jti|allow_token_expiration)$)[a-z][a-z0-9_]*"
)
# A name in `task_environment`. `*` alone is invalid, because it would pass on the agent's whole
# environment.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
_USER = re.compile(r"\*|@?[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")
_SITE = re.compile(r"https?://[!-~]{1,500}(?<!/ui)(?<!/ui/)")
_RECEIVER = re.compile(
    r"(https?)://(\[[0-9a-fA-F:.]+\]|[^/?#@:\s]+)(?::\d{1,5})?(?:/[^?#\s]*)?(?<!/v1/traces)"
)
_ISSUER = re.compile(r"https?://[^/?#\s]+(/[^/?#\s]+)*")
_CHOICES: dict[str, tuple[str, ...]] = {
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
    "alloc_disk_limit": (DISK_OFF, DISK_NOTE, DISK_FAIL),
    "task_egress": (OPEN, GUARDED),
}


# The forms of free texts, for every source. A text setting that has no form is checked elsewhere.
class _Rule(NamedTuple):
    """The form of a text setting.

    An empty string selects the default, unless `is_needed` is true.
    """

    form: re.Pattern[str]
    hint: str
    is_needed: bool = False


# A job matches datacenters with patterns, and messages separate names by spaces.
_WORD = re.compile(r"[^\s\x00-\x1f\x7f*?\[\]{},\"'/]{1,128}")
_WORD_HINT = "write 1 to 128 characters without spaces, commas, slashes, quotes, brackets, * and ?"
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
_CLOUD = re.compile(r"https?://(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?(?:/[!-~]*)?")
_CLOUD_HINT = "write it as https://HOST or http://HOST:PORT"
_TEXTS: dict[str, _Rule] = {
    "region": _Rule(_WORD, _WORD_HINT, True),
    "datacenter": _Rule(_WORD, _WORD_HINT, True),
    "node_name": _Rule(_TITLE, _TITLE_HINT),
    "node_class": _Rule(_TITLE, _TITLE_HINT),
    "node_pool": _Rule(
        _POOL,
        "write 1 to 128 letters, digits, - and _; the name all is reserved for all pools",
        True,
    ),
    "node_meta": _Rule(
        _META,
        "write parts separated by dots; each begins with a letter and has letters, digits, - and _",
        True,
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
    "cloud_directory_url": _Rule(_CLOUD, _CLOUD_HINT),
    "cloud_resource_manager_url": _Rule(_CLOUD, _CLOUD_HINT),
    "cloud_graph_url": _Rule(_CLOUD, _CLOUD_HINT),
    "cloud_metadata_url": _Rule(_CLOUD, _CLOUD_HINT),
}


def load_settings(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    is_root: bool | None = None,
) -> Settings:
    """Return the settings from a file, the environment and the command line.

    Without `file`, the default file is read if it exists. `is_root` says whether root started the
    daemon, even if the process has changed its user since. If `is_root` is None, the kernel is
    asked. Raises `Invalid`, which names the setting, its value and its source.
    """
    settings: dict[str, object] = {}
    source: dict[str, str] = {}
    layers = (
        (str(file or DEFAULT_FILE), _from_file(file)),
        ("the environment", _from_environment(environment)),
        ("the command line", dict(flags)),
    )
    for origin, values in layers:
        for name, value in values.items():
            settings[name] = value
            source[name] = origin
    for name, value in settings.items():
        _check(name, value, source[name])
    config = msgspec.convert(settings, Settings, strict=False, dec_hook=_path)
    return _completed(
        config, environment, is_root=os.geteuid() == 0 if is_root is None else is_root
    )


def _from_file(file: Path | None) -> dict[str, object]:
    # an unreadable directory also counts as missing
    if file is None and not os.path.exists(DEFAULT_FILE):
        return {}
    path = file or DEFAULT_FILE
    text = ""
    try:
        text = path.read_text()
        values = tomllib.loads(text)
    except OSError as error:
        raise Invalid(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} is not valid TOML: {error}{hint(text)}") from error
    values = translated(values, str(path))
    for name in values.keys() - FIELDS.keys():
        raise Invalid(f"{path}: unknown setting {name!r}{_nearest(name, FIELDS)}")
    return values


def _nearest(name: str, candidates: Iterable[str]) -> str:
    from daemon.text.hints import closest  # imported late, like in other rare errors

    close = closest(name, candidates)
    return f"; did you mean {close!r}?" if close else ""


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the settings in `STEWARD_…` variables.

    Variables of the client commands and of job files are not settings, and are left out. Raises
    `Invalid` for any other unknown variable, because it is most likely a typing error.
    """
    known_names = _NO_SETTINGS | {PREFIX + name.upper() for name in FIELDS}
    for name in sorted(environment.keys() - known_names):
        if name.startswith(PREFIX) and not name.startswith(_OF_JOB_FILES):
            raise Invalid(
                f"the environment: unknown variable {name!r}{_nearest(name, known_names)}"
            )
    values: dict[str, object] = {}
    for name, field in FIELDS.items():
        text = environment.get(PREFIX + name.upper())
        if text is None:
            continue
        if field.type == dict[str, str]:
            pairs = text.split(",") if text.strip() else []
            values[name] = split_pairs(pairs, PREFIX + name.upper())
        elif field.type in (list[str], list[str] | None):
            values[name] = [part.strip() for part in text.split(",")] if text.strip() else []
        else:
            values[name] = text
    return values


def split_pairs(texts: list[str], origin: str) -> dict[str, str]:
    """Return `key=value` strings as a map. Raises `Invalid`."""
    for text in texts:
        if "=" not in text:
            raise Invalid(f"{origin}: {text!r} is not of the form key=value")
    return {key.strip(): value for key, _, value in (text.partition("=") for text in texts)}


def _check(name: str, value: object, origin: str) -> None:
    """Raise `Invalid` unless a value has the type of its setting and is a permitted choice.

    `origin` is the source of the value.
    """
    if not _is_text(value):
        raise Invalid(f"{name} = {value!r} ({origin}): write it as UTF-8, without NUL")
    try:
        msgspec.convert(value, FIELDS[name].type, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        form = _permitted_form(FIELDS[name].type)
        raise Invalid(f"{name} = {value!r} ({origin}): {error}{form}") from error
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise Invalid(f"{name} = {value!r} ({origin}): choose one of {', '.join(choices)}")


def _permitted_form(kind: object) -> str:
    """Return a hint with the permitted range of a number or the forms of a flag, or no hint."""
    from msgspec import inspect  # imported late, like in other rare errors

    waiting = [inspect.type_info(kind)]
    for form in waiting:
        match form:
            case inspect.UnionType():
                waiting.extend(form.types)
            case inspect.IntType():
                return f"; write an integer from {form.ge} to {form.le}"
            case inspect.BoolType():
                return "; write true or false"
    return ""


def _is_text(value: object) -> bool:
    """Return whether a value can be encoded as UTF-8; environment variables may hold any bytes."""
    if isinstance(value, str | Path):
        value = str(value)
        return "\0" not in value and value == value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return all(map(_is_text, (*value, *value.values())))
    return not isinstance(value, list | tuple) or all(map(_is_text, value))


def _path(kind: type, value: object) -> object:
    """Convert a text to a path, the only type of settings that msgspec does not convert itself."""
    if kind is not Path:
        raise NotImplementedError(kind)
    if not isinstance(value, str | Path):
        raise ValueError("Expected `str`, the path of a file or directory")  # noqa: TRY004  # a setting's type
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"the user in {str(value)!r} does not exist on this host") from error


def _completed(config: Settings, environment: Mapping[str, str], *, is_root: bool) -> Settings:
    """Check the settings, and fill in values that depend on the host and on the daemon's user.

    Raises `Invalid`.
    """
    for fault in _faults(config):
        raise Invalid(fault)
    usual = default_data_dir(environment, is_root=is_root)
    data_dir = config.data_dir
    if data_dir == Path() and not config.dev:
        data_dir = usual
    return msgspec.structs.replace(
        config,
        data_dir=_absolute(data_dir),
        socket=config.socket
        or _usual_socket(environment, is_usual=data_dir == usual, is_root=is_root),
        **{name: _absolute(getattr(config, name)) for name in _FILES},
        node_name=config.node_name or socket.gethostname(),
    )


def _faults(config: Settings) -> Iterator[str]:
    """Yield the errors of the settings: invalid values and contradictions."""
    yield from _faults_of_names(config)
    if config.dev and not is_loopback(config.bind):
        yield (
            f"bind = {config.bind!r}: a development daemon listens only on loopback; "
            "leave --dev out to listen elsewhere"
        )
    if config.dev_cloud and not config.dev:
        yield "dev_cloud = true: anyone can log in with it, so it works only with --dev"
    if not config.dev and config.acl is False:
        yield "acl = false: only a development daemon works without tokens; add --dev"
    if config.ask_passphrase and config.key_file != Path():
        yield f"key_file = {str(config.key_file)!r} and ask_passphrase = true: choose one of them"
    if config.oidc_issuer and not _ISSUER.fullmatch(config.oidc_issuer):
        yield (
            f"oidc_issuer = {config.oidc_issuer!r}: write it as https://HOST or https://HOST/PATH, "
            "without a slash at the end"
        )
    for name in config.identity_claims:
        if not _CLAIM.fullmatch(name):
            yield (
                f"identity_claims: {name!r} cannot be a claim; a name has lower case letters, "
                "digits and _, does not begin with nomad_, and is not a standard claim"
            )
    yield from _faults_of_tasks(config)
    yield from host_resources.volume_errors(config.host_volumes)
    yield from host_resources.faults_of_volume_paths(config.volume_paths)
    yield from host_resources.network_errors(config.host_networks)
    yield from host_resources.bridge_errors(
        config.bridge_network_name, config.bridge_network_subnet
    )
    yield from _faults_of_notify(config)
    yield from _faults_of_otlp(config)
    yield from _faults_of_listening(config)
    yield from _faults_of_clusters(config)


def _faults_of_names(config: Settings) -> Iterator[str]:
    """Yield the errors of free texts: names, addresses and paths."""
    for setting, rule in _TEXTS.items():
        value = getattr(config, setting)
        for text in [value] if isinstance(value, str) else value:
            if (text or rule.is_needed) and not rule.form.fullmatch(text):
                named = f"{setting} = {text!r}" if text is value else f"{setting}: {text!r}"
                yield f"{named}: {rule.hint}"
            elif setting == "cgroup_parent" and ".." in text.split("/"):
                yield f"{setting} = {text!r}: {rule.hint}, without .."


def _faults_of_notify(config: Settings) -> Iterator[str]:
    yield from host_resources.command_errors(config.notify_commands)
    if config.notify_link and not _SITE.fullmatch(config.notify_link):
        yield (
            f"notify_link = {config.notify_link!r}: write the address of the web interface without "
            "/ui, such as https://steward.example.com"
        )
    if config.notify_receivers:
        from daemon.config import (
            notify_receivers,  # imported here because few daemons have receivers
        )

        yield from notify_receivers.faults_of_receivers(
            config.notify_receivers, config.notify_commands
        )


def _faults_of_otlp(config: Settings) -> Iterator[str]:
    match = _RECEIVER.fullmatch(config.otlp_url)
    if config.otlp_url and match is None:
        yield (
            f"otlp_url = {config.otlp_url!r}: write the address of an OTLP/HTTP receiver without "
            "/v1/traces, such as http://127.0.0.1:4318"
        )
    if config.otlp_token_file == Path():
        return
    if not config.otlp_url:
        yield f"otlp_token_file = {str(config.otlp_token_file)!r} needs otlp_url"
    elif match and match[1] == "http" and not is_loopback(match[2].strip("[]")):
        yield (
            f"otlp_url = {config.otlp_url!r}: others could read the token of otlp_token_file on its "
            "way; use https"
        )


def _faults_of_tasks(config: Settings) -> Iterator[str]:
    try:
        task_numbers(config.task_uids, "")
    except ValueError as error:
        yield str(error)
    for name in config.task_environment:
        if not _VARIABLE.fullmatch(name):
            yield (
                f"task_environment: {name!r} is not a variable name; write letters, digits and _, "
                "with * at the end to match a prefix"
            )

    for name in ("task_users", "user_denylist"):
        for word in getattr(config, name):
            if not _USER.fullmatch(word):
                yield f"{name}: {word!r} is not a user; write a name, a number, @GROUP, or * for all but root"
    if config.raw_exec_user in ("root", "0") and not config.raw_exec_root:
        yield (
            f"raw_exec_user = {config.raw_exec_user!r}: tasks would run as root; name another user, "
            "or also set raw_exec_root = true"
        )
    for name in ("denied_host_uids", "denied_host_gids"):
        try:
            ranges(getattr(config, name))
        except ValueError as error:
            yield f"{name} = {getattr(config, name)!r}: {error}; write numbers and ranges: 0,100-200"


def _faults_of_listening(config: Settings) -> Iterator[str]:
    for name in ("bind", "issuer_bind"):
        host = getattr(config, name) or "127.0.0.1"
        if not (is_loopback(host) or config.is_encrypted or config.allow_plain_text):
            yield (
                f"{name} = {host!r}: others could read and change the traffic; set "
                "tls_cert and tls_key, or allow_plain_text = true"
            )
    if "*" in config.host_names:
        yield "host_names: '*' would accept requests from any web page; write the names"
    if (config.tls_cert == Path()) != (config.tls_key == Path()):
        yield "tls_cert and tls_key belong together: set both, or neither"
    if config.tls_client_ca != Path() and not config.is_encrypted:
        yield f"tls_client_ca = {str(config.tls_client_ca)!r} needs tls_cert and tls_key"
    for network in config.trusted_proxies:
        try:
            ip_network(network)
        except ValueError as error:
            yield f"trusted_proxies: {error}; write addresses or networks such as 10.0.0.0/8"


def _faults_of_clusters(config: Settings) -> Iterator[str]:
    yield from pools.pool_config_errors(config.pools, config.node_pool)
    host, is_encrypted = config.wrapper_host, config.of_wrappers.is_encrypted
    if config.pools and not (is_loopback(host) or is_encrypted or config.allow_plain_text):
        yield (
            f"wrapper_bind = {host!r}: others could read and change the traffic of tasks; set "
            "wrapper_tls_cert and wrapper_tls_key, or allow_plain_text = true"
        )
    if (config.wrapper_tls_cert == Path()) != (config.wrapper_tls_key == Path()):
        yield "wrapper_tls_cert and wrapper_tls_key belong together: set both, or neither"
    if config.wrapper_url:
        is_open = config.allow_plain_text or is_loopback(host)
        yield from pools.wrapper_url_errors(config.wrapper_url, is_open=is_open)


def _usual_socket(environment: Mapping[str, str], *, is_usual: bool, is_root: bool) -> str:
    """Return the usual path of the operators' socket, or an empty string.

    `is_usual` means that the daemon uses the default data directory. Otherwise, the result is
    empty, because the socket is in the data directory. `is_root` means that root starts the daemon.
    """
    if not is_usual:
        return ""
    if directory := environment.get("RUNTIME_DIRECTORY"):  # set by systemd
        return f"{directory}/{SOCKET_NAME}"
    return str(USUAL_SOCKET) if is_root else ""


def _absolute(path: Path) -> Path:
    """Return a path that does not depend on the working directory; an empty path stays empty."""
    return path if path == Path() else path.absolute()
