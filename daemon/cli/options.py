"""Options that many commands share, and what they become: a client and a screen.

Every setting of the connection comes from its option, else from `STEWARD_...`, else from the
peer's variable `NOMAD_...`.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps

import click
import msgspec
from click.core import ParameterSource

from daemon.cli.output import Screen, Wishes
from daemon.cli.secret import find_token

DEFAULT_ADDRESS = "http://127.0.0.1:4646"
# Where operators of this machine need no token.
SOCKET = "/run/steward/steward.sock"

# What click calls: anything in, an exit status (None: 0) out.
Command = Callable[..., int | None]


# Whose variables count, first choice first: ours, then those of the peer whose side is spoken to.
_OF_JOBS = ("STEWARD", "NOMAD")
_OF_SECRETS = ("STEWARD", "VAULT", "BAO", "NOMAD")


def variables(name: str, prefixes: tuple[str, ...] = _OF_JOBS) -> list[str]:
    """Return the variables that may hold a setting, first choice first."""
    return [f"{prefix}_{name}" for prefix in prefixes]


def _setting(
    flag: str, variable: str, about: str, prefixes: tuple[str, ...], *, is_flag: bool = False
) -> Callable[[Command], Command]:
    return click.option(
        flag,
        envvar=variables(variable, prefixes),
        help=f"{about} [env: STEWARD_{variable}]",
        default=False if is_flag else "",
        is_flag=is_flag,
    )


def _connection(of: tuple[str, ...]) -> tuple[Callable[[Command], Command], ...]:
    jobs = _OF_JOBS  # a namespace and a region of the other side are something else
    return (
        _setting("--address", "ADDR", "Address of the daemon.", of),
        _setting("--token", "TOKEN", "Secret of the token to use; -: asked for.", of),
        _setting("--namespace", "NAMESPACE", "Namespace; * means all in lists.", jobs),
        _setting("--region", "REGION", "Region.", jobs),
        _setting("--http-auth", "HTTP_AUTH", "USER:PASSWORD for a proxy before it.", jobs),
        _setting("--ca-cert", "CACERT", "File of the authority to trust.", of),
        _setting("--ca-path", "CAPATH", "Directory of authorities to trust.", of),
        _setting("--client-cert", "CLIENT_CERT", "File of a client certificate.", of),
        _setting("--client-key", "CLIENT_KEY", "File of its key.", of),
        _setting("--tls-server-name", "TLS_SERVER_NAME", "Name in its certificate.", of),
        _setting("--tls-skip-verify", "SKIP_VERIFY", "Trust any certificate.", of, is_flag=True),
    )


_CONNECTION = _connection(_OF_JOBS)
_CONNECTION_TO_SECRETS = _connection(_OF_SECRETS)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_LOOKS = (
    click.option("--verbose", is_flag=True, help="Print whole identifiers and more."),
    click.option("--color/--no-color", "colour", default=None, help="Force or forbid colour."),
    click.option("--force-color", "colour", flag_value=True, hidden=True),
)


def _selector(*names: str) -> Callable[[Command], Command]:
    return click.option(
        *names, "selector", default="", metavar="SELECTOR", help="Print one part: .A.B[0]"
    )


_SCREEN = (_JSON, _selector("-t", "--field"), *_LOOKS)
_SCREEN_OF_VALUES = (_JSON, _selector("-t"), *_LOOKS)


def connected(command: Command) -> Command:
    """Give a command the options of a connection, and a `client` instead of them."""
    return _connected(command, find_token, _CONNECTION)


def connected_to_secrets(command: Command) -> Command:
    """Do the same for a command of the secrets side: the variables of its peers count as well."""
    return _connected(command, find_token, _CONNECTION_TO_SECRETS)


def connected_openly(command: Command) -> Command:
    """Do the same for one that shows no token, because it is to get one."""
    return _connected(command, lambda _given, _environment: "", _CONNECTION_TO_SECRETS)


def _connected(
    command: Command,
    find: Callable[[str, Mapping[str, str]], str],
    settings_of: tuple[Callable[[Command], Command], ...],
) -> Command:
    @wraps(command)
    def call(*args: object, **options: object) -> int | None:
        # Slow to import: what asks nobody (`version`, `fmt`) goes without.
        from daemon.cli.client import Client, Connection

        settings = {field: options.pop(field) for field in Connection.__struct_fields__}
        settings["address"] = settings["address"] or usual_address()
        settings["token"] = find(str(settings["token"]), os.environ)
        with Client(msgspec.convert(settings, Connection)) as client:
            return command(*args, client=client, **options)

    return _with(settings_of, call)


def usual_address() -> str:
    """Return where the daemon is when nobody says so: at its socket, for who may connect to it."""
    return f"unix://{SOCKET}" if os.access(SOCKET, os.R_OK | os.W_OK) else DEFAULT_ADDRESS


def shown(command: Command) -> Command:
    """Give a command the options of printing, and a `screen` instead of them."""
    return _shown(command, _SCREEN)


def shown_values(command: Command) -> Command:
    """Do the same for a command whose own `--field` names a value, as the peer's does."""
    return _shown(command, _SCREEN_OF_VALUES)


def _shown(command: Command, looks: tuple[Callable[[Command], Command], ...]) -> Command:
    @wraps(command)
    def call(*args: object, **options: object) -> int | None:
        wishes = {field: options.pop(field) for field in Wishes.__struct_fields__}
        screen = open_screen(msgspec.convert(wishes, Wishes), os.environ)
        return command(*args, screen=screen, **options)

    return _with(looks, call)


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def asked_for(name: str) -> bool:
    """Tell whether an option stands on the command line, not only in the environment."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def open_screen(wishes: Wishes, environment: Mapping[str, str]) -> Screen:
    """Return the screen that fits these wishes and where standard output goes. Raises `Invalid`."""
    document = wishes.as_json or bool(wishes.selector)
    if document or not wants_colour(wishes.colour, environment):
        return Screen(wishes)
    from daemon.cli.terminal import TerminalScreen  # slow to import, and useless in a pipe

    return TerminalScreen(wishes, hints=wants_hints(environment))


def wants_colour(given: bool | None, environment: Mapping[str, str]) -> bool:
    """Tell whether output is for a terminal that shows colours."""
    if given is not None:
        return given
    if any(environment.get(name) for name in ("NO_COLOR", "NOMAD_CLI_NO_COLOR")):
        return False
    if any(environment.get(name) for name in ("FORCE_COLOR", "NOMAD_CLI_FORCE_COLOR")):
        return True
    return sys.stdout.isatty() and environment.get("TERM") != "dumb"


def wants_hints(environment: Mapping[str, str]) -> bool:
    """Tell whether the next useful command is to be named."""
    names = ("STEWARD_CLI_SHOW_HINTS", "NOMAD_CLI_SHOW_HINTS")
    given = next((environment[name] for name in names if name in environment), "1")
    return sys.stdout.isatty() and given.lower() not in ("0", "f", "false")
