"""What the Tab key offers where a name is wanted: the daemon's names and identifiers, or files.

Imported only while a shell completes a word. A daemon that does not answer offers nothing: whoever
types must not be interrupted.
"""

import os
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

from daemon.cli.client import Client, Connection
from daemon.cli.options import usual_address
from daemon.cli.secret import ASK, find_token
from daemon.dashes import short_option, two_dashes
from storage.errors import StewardError
from storage.records.search import SearchRequest

ANSWER_WITHIN = 1.5  # seconds: whoever typed Tab waits
# Parameters, and in which context of a search what they name is found.
_CONTEXTS = {
    "alloc_id": "allocs",
    "deployment_id": "deployment",
    "eval_id": "evals",
    "given": "nodes",
    "job_id": "jobs",
    "job_ids": "jobs",
    "namespace": "namespaces",
    "node_id": "nodes",
}
# Modules of which every command is about one kind of thing, and names it so.
_MODULES = {
    "daemon.cli.lock": "vars",
    "daemon.cli.namespace": "namespaces",
    "daemon.cli.variable": "vars",
}
_THING = frozenset({"name", "path", "prefix"})
_FILES = frozenset(
    {"ca_cert", "ca_path", "client_cert", "client_key", "file", "files", "jwt_file", "var_file"}
)


class _OneDash(ShellComplete):
    """Completes what was typed as a command would read it: long options may have one dash."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what the last word may become."""
        *words, last = map(short_option, two_dashes([*args, incomplete]))
        return super().get_completions(words, last)


class _Bash(_OneDash, BashComplete):
    pass


class _Zsh(_OneDash, ZshComplete):
    pass


class _Fish(_OneDash, FishComplete):
    pass


def accept_one_dash() -> None:
    """Have each shell complete options that are written with one dash."""
    for shell in (_Bash, _Zsh, _Fish):
        add_completion_class(shell)


class _Found(msgspec.Struct, rename="pascal"):
    matches: Mapping[str, list[str] | None]


class _Named(StringParamType):
    """A name that the daemon knows."""

    def __init__(self, context: str) -> None:
        self.name = context

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return what begins like the word so far."""
        # `logs -job` and its like: what is called an allocation is a job.
        context = "jobs" if ctx.params.get("of_job") else self.name
        try:
            found = _ask(ctx.params, context, incomplete)
        except StewardError:
            return []
        return [CompletionItem(one) for one in found]


def offer_names(command: click.Command) -> None:
    """Have the parameters of a command offer what they may be."""
    for parameter in command.params:
        if parameter.name in _FILES:
            parameter.type = click.Path()
        elif context := _context(command, parameter):
            parameter.type = _Named(context)


def _context(command: click.Command, parameter: click.Parameter) -> str | None:
    """Return where what a parameter names is found; None when the daemon does not know."""
    name = parameter.name or ""
    if name in _THING and command.callback is not None:
        return _MODULES.get(command.callback.__module__)
    return _CONTEXTS.get(name)


def _ask(given: Mapping[str, object], context: str, beginning: str) -> list[str]:
    """Return the daemon's names. What was typed so far, and the environment, say which daemon."""
    known = {
        name: value
        for name in Connection.__struct_fields__
        if (value := given.get(name)) is not None
    }
    secret = str(known.get("token", ""))
    known["address"] = known.get("address") or usual_address()
    known["token"] = "" if secret == ASK else find_token(secret, os.environ)
    connection = msgspec.convert(known, Connection)
    with Client(connection, answer_within=ANSWER_WITHIN) as client:
        asked = SearchRequest(prefix=beginning, context=context)
        return client.send("POST", "/v1/search", asked).decode(_Found).matches.get(context) or []
