"""Shell completion: names offered for the Tab key, and the script that a shell loads.

It offers files, or the names and identifiers of the daemon's objects. This module is imported only
for completion. If the daemon does not respond, nothing is offered, so that typing is not
interrupted.
"""

import os
import re
from collections.abc import Mapping

import click
import msgspec
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)
from click.types import StringParamType

from daemon.cli.core.http_client import ApiClient, HttpConnection
from daemon.cli.core.options import usual_address
from daemon.cli.core.token_source import ASK, find_token
from daemon.text.option_syntax import normalize_options, short_option
from storage.errors import StewardError
from storage.records.search import SearchRequest

ANSWER_WITHIN = 1.5  # seconds, because the user waits for the Tab key
# Parameters, and the search context that has their names.
_CONTEXTS = {
    "alloc_id": "allocs",
    "deployment_id": "deployment",
    "eval_id": "evals",
    "id_or_prefix": "nodes",
    "job_id": "jobs",
    "job_ids": "jobs",
    "namespace": "namespaces",
    "node_id": "nodes",
}
# Modules whose commands all take the same kind of name.
_MODULES = {
    "daemon.cli.commands.var_lock": "vars",
    "daemon.cli.commands.namespace": "namespaces",
    "daemon.cli.commands.variable": "vars",
}
_THING = frozenset({"name", "path", "prefix"})
_FILES = frozenset(
    {"ca_cert", "ca_path", "client_cert", "client_key", "file", "files", "jwt_file", "var_file"}
)


class _OneDash(ShellComplete):
    """Completion of options with one or two dashes, as the commands accept them."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return the completions of the last word."""
        *words, last = map(short_option, normalize_options([*args, incomplete]))
        return super().get_completions(words, last)


class _Bash(_OneDash, BashComplete):
    pass


class _Zsh(_OneDash, ZshComplete):
    pass


class _Fish(_OneDash, FishComplete):
    pass


_SHELLS: Mapping[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}
_VARIABLE = "_STEWARD_COMPLETE"
# A shell inserts a name without quotes. A name with other characters would become several words.
_COMPLETED = re.compile(r"[\w./:@+=,][\w./:@+=,-]*")


@click.command()
@click.argument("shell", type=click.Choice([*_SHELLS]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script for SHELL that completes commands, options and names.

    For bash, put this line into ~/.bashrc: eval "$(steward completion bash)"

    Example: steward completion bash
    """
    root = ctx.find_root()
    click.echo(_SHELLS[shell](root.command, {}, root.info_name or "", _VARIABLE).source())


def accept_one_dash() -> None:
    """Make each shell complete options that are written with one dash."""
    for shell in _SHELLS.values():
        add_completion_class(shell)


class _Found(msgspec.Struct, rename="pascal"):
    matches: Mapping[str, list[str] | None]


class _Named(StringParamType):
    """The type of a parameter that names an object of the daemon, such as a job."""

    def __init__(self, context: str) -> None:
        self.name = context

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names with this prefix."""
        # With `-job`, the parameter for an allocation holds a job name.
        context = "jobs" if ctx.params.get("of_job") else self.name
        try:
            names = _request_names(ctx.params, context, incomplete)
        except StewardError:
            return []
        return [CompletionItem(name) for name in names if _COMPLETED.fullmatch(name)]


def offer_names(command: click.Command) -> None:
    """Make the parameters of a command complete with names that the daemon knows."""
    for parameter in command.params:
        if parameter.name in _FILES:
            parameter.type = click.Path()
        elif context := _context(command, parameter):
            parameter.type = _Named(context)


def _context(command: click.Command, parameter: click.Parameter) -> str | None:
    """Return the search context of a parameter, or None if the daemon has no names for it."""
    name = parameter.name or ""
    if name in _THING and command.callback is not None:
        return _MODULES.get(command.callback.__module__)
    return _CONTEXTS.get(name)


def _request_names(parameters: Mapping[str, object], context: str, beginning: str) -> list[str]:
    """Return the names in a search context that begin with `beginning`.

    `parameters` are the options typed so far. Together with the environment, they select the
    daemon.
    """
    connection_fields = {
        name: value
        for name in HttpConnection.__struct_fields__
        if (value := parameters.get(name)) is not None
    }
    secret = str(connection_fields.get("token", ""))
    connection_fields["address"] = connection_fields.get("address") or usual_address()
    connection_fields["token"] = "" if secret == ASK else find_token(secret, os.environ)
    connection = msgspec.convert(connection_fields, HttpConnection)
    with ApiClient(connection, answer_within=ANSWER_WITHIN) as client:
        search_request = SearchRequest(prefix=beginning, context=context)
        return (
            client.send("POST", "/v1/search", search_request).decode(_Found).matches.get(context)
            or []
        )
