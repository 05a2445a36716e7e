"""Options that many commands share, and the client and screen made from them.

A setting of the connection comes from its option, else from `STEWARD_...`, else from Nomad's
`NOMAD_...`.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import wraps

import click
import msgspec
from click.core import ParameterSource

from daemon.cli.core.output import OutputOptions, Screen, is_terminal
from daemon.cli.core.token_source import find_token

DEFAULT_ADDRESS = "http://127.0.0.1:4646"
# The daemon's socket. Operators on this host need no token on it.
SOCKET = "/run/steward/steward.sock"

# A function that click calls; it returns an exit status, or None for 0.
Command = Callable[..., int | None]


class Integer(click.ParamType[int]):
    """An integer of a limited range, or without an upper limit."""

    name = "integer"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._least, self._most = least, most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the integer. Raises click's error, which states the permitted range."""
        text = str(value)
        if re.fullmatch(r"[+-]?[0-9]{1,20}", text, re.ASCII):
            number = int(text)
            if number >= self._least and (self._most is None or number <= self._most):
                return number
        limits = (
            f"of at least {self._least}"
            if self._most is None
            else f"from {self._least} to {self._most}"
        )
        raise click.BadParameter(f"{text!r} must be an integer {limits}", ctx, param)


# Prefixes of environment variables, in order: Steward's, then those of Nomad or Vault.
_OF_JOBS = ("STEWARD", "NOMAD")
_OF_SECRETS = ("STEWARD", "VAULT", "BAO", "NOMAD")


def variables(name: str, prefixes: tuple[str, ...] = _OF_JOBS) -> list[str]:
    """Return the environment variables that can set an option, in order of precedence."""
    return [f"{prefix}_{name}" for prefix in prefixes]


def _setting(
    flag: str, variable: str, description: str, prefixes: tuple[str, ...], *, is_flag: bool = False
) -> Callable[[Command], Command]:
    return click.option(
        flag,
        envvar=variables(variable, prefixes),
        help=f"{description} [env: STEWARD_{variable}]",
        default=False if is_flag else "",
        is_flag=is_flag,
    )


def _connection(of: tuple[str, ...]) -> tuple[Callable[[Command], Command], ...]:
    jobs = _OF_JOBS  # namespace and region mean something else in the Vault API
    return (
        _setting("--address", "ADDR", "Address of the daemon.", of),
        _setting("--token", "TOKEN", "Secret ID of the token; -: prompt for it.", of),
        _setting("--namespace", "NAMESPACE", "Namespace; * means all in lists.", jobs),
        _setting("--region", "REGION", "Region.", jobs),
        _setting(
            "--http-auth", "HTTP_AUTH", "USER:PASSWORD for a proxy in front of the daemon.", jobs
        ),
        _setting("--ca-cert", "CACERT", "File with CA certificates to trust.", of),
        _setting("--ca-path", "CAPATH", "Directory with CA certificates to trust.", of),
        _setting("--client-cert", "CLIENT_CERT", "File with a client certificate.", of),
        _setting("--client-key", "CLIENT_KEY", "File with the certificate's private key.", of),
        _setting(
            "--tls-server-name", "TLS_SERVER_NAME", "Host name in the daemon's certificate.", of
        ),
        _setting(
            "--tls-skip-verify", "SKIP_VERIFY", "Do not verify the certificate.", of, is_flag=True
        ),
    )


_CONNECTION = _connection(_OF_JOBS)
_CONNECTION_TO_SECRETS = _connection(_OF_SECRETS)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_LOOKS = (
    click.option("--verbose", is_flag=True, help="Print full IDs and more details."),
    click.option("--color/--no-color", "color", default=None, help="Force or disable color."),
    click.option("--force-color", "color", flag_value=True, hidden=True),
)


def _selector(*names: str) -> Callable[[Command], Command]:
    return click.option(
        *names,
        "selector",
        default="",
        metavar="SELECTOR",
        help="Print a part of the JSON, such as .A.B[0].",
    )


_SCREEN = (_JSON, _selector("-t", "--field"), *_LOOKS)
_SCREEN_OF_VALUES = (_JSON, _selector("-t"), *_LOOKS)


def with_client(command: Command) -> Command:
    """Add the options of a connection to a command, and pass a `client` instead of them."""
    return _connected(command, find_token, _CONNECTION)


def with_vault_client(command: Command) -> Command:
    """Do the same as `with_client` for the Vault API, with Vault's environment variables."""
    return _connected(command, find_token, _CONNECTION_TO_SECRETS)


def with_anonymous_client(command: Command) -> Command:
    """Do the same as `with_client` for a command that sends no token, such as a login."""
    return _connected(command, lambda _token, _environment: "", _CONNECTION_TO_SECRETS)


def _connected(
    command: Command,
    find: Callable[[str, Mapping[str, str]], str],
    settings_of: tuple[Callable[[Command], Command], ...],
) -> Command:
    @wraps(command)
    def call(*args: object, **options: object) -> int | None:
        # Slow to import, and commands without a connection (`version`, `fmt`) do not need it.
        from daemon.cli.core.http_client import ApiClient, HttpConnection

        settings = {field: options.pop(field) for field in HttpConnection.__struct_fields__}
        settings["address"] = settings["address"] or usual_address()
        settings["token"] = find(str(settings["token"]), os.environ)
        with ApiClient(msgspec.convert(settings, HttpConnection)) as client:
            return command(*args, client=client, **options)

    return _with(settings_of, call)


def usual_address() -> str:
    """Return the daemon's socket if the user may connect to it, otherwise the default address."""
    return f"unix://{SOCKET}" if os.access(SOCKET, os.R_OK | os.W_OK) else DEFAULT_ADDRESS


def with_output(command: Command) -> Command:
    """Add the options of output to a command, and pass a `screen` instead of them."""
    return _shown(command, _SCREEN)


def shown_values(command: Command) -> Command:
    """Add the output options as `with_output` does, and `--field`, which prints only one value."""
    return _shown(command, _SCREEN_OF_VALUES)


def _shown(command: Command, looks: tuple[Callable[[Command], Command], ...]) -> Command:
    @wraps(command)
    def call(*args: object, **options: object) -> int | None:
        output_options = {field: options.pop(field) for field in OutputOptions.__struct_fields__}
        screen = open_screen(msgspec.convert(output_options, OutputOptions), os.environ)
        return command(*args, screen=screen, **options)

    return _with(looks, call)


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def is_given_on_command_line(name: str) -> bool:
    """Return whether an option is on the command line, not only in the environment."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def open_screen(output_options: OutputOptions, environment: Mapping[str, str]) -> Screen:
    """Return a screen for these options and the type of standard output. Raises `Invalid`."""
    document = output_options.as_json or bool(output_options.selector)
    if document or not wants_color(output_options.color, environment):
        return Screen(output_options)
    from daemon.cli.core.terminal import TerminalScreen  # slow to import, and not needed in a pipe

    return TerminalScreen(output_options, hints=wants_hints(environment))


def wants_color(choice: bool | None, environment: Mapping[str, str]) -> bool:
    """Return whether to print in color: as the user chose, or by default on a terminal."""
    if choice is not None:
        return choice
    if any(environment.get(name) for name in ("NO_COLOR", "NOMAD_CLI_NO_COLOR")):
        return False
    if any(environment.get(name) for name in ("FORCE_COLOR", "NOMAD_CLI_FORCE_COLOR")):
        return True
    return is_terminal() and environment.get("TERM") != "dumb"


def wants_hints(environment: Mapping[str, str]) -> bool:
    """Return whether to suggest the next command."""
    names = ("STEWARD_CLI_SHOW_HINTS", "NOMAD_CLI_SHOW_HINTS")
    setting = next((environment[name] for name in names if name in environment), "1")
    return is_terminal() and setting.lower() not in ("0", "f", "false")
