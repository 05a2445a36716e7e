"""The tree of commands, and the conversion of errors to exit statuses.

A module is imported when its command is called, so that a short command starts fast. To add a
command, write it in a module here and add it to `COMMANDS`. A group is a nested map.

Exit statuses: 0 success; 1 failure; 130 interrupted. The help of a command describes its other
statuses. For example, `job run` exits with 2 after a placement failure.
"""

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn, Union

import click

from daemon.cli.core.boolean_options import with_boolean_values
from daemon.cli.core.command_groups import CommandGroup
from daemon.text.control_characters import visible_lines
from daemon.text.option_syntax import short_option
from daemon.version import VERSION
from storage.errors import StewardError

EXIT_ERROR = 1
EXIT_USAGE = 2  # as in click
_OUR_VARIABLES = ("STEWARD_", "NOMAD_", "VAULT_")
EXIT_INTERRUPTED = 130  # as a shell reports a program that SIGINT ended

_HELP = {"help_option_names": ["-h", "--help"]}

# A command is `module:function`; a group is its help and its commands.
Tree = Mapping[str, Union[str, "Group"]]
Group = tuple[str, Tree]

_PERIODIC: Tree = {
    "force": "daemon.cli.commands.child_jobs:periodic_force",
    "next": "daemon.cli.commands.child_jobs:periodic_next",
    "pause": "daemon.cli.commands.child_jobs:periodic_pause",
    "resume": "daemon.cli.commands.child_jobs:periodic_resume",
    "slots": "daemon.cli.commands.child_jobs:periodic_slots",
}
_TAG: Tree = {
    "apply": "daemon.cli.commands.job_versions:tag",
    "unset": "daemon.cli.commands.job_versions:untag",
}
_JOB: Tree = {
    "action": "daemon.cli.commands.exec:action",
    "allocs": "daemon.cli.commands.status:allocs",
    "deployments": "daemon.cli.commands.deployment:of_job",
    "dispatch": "daemon.cli.commands.child_jobs:dispatch",
    "eval": "daemon.cli.commands.job_actions:evaluate",
    "explain": "daemon.cli.commands.explain:explain",
    "graph": "daemon.cli.commands.job_graph:graph",
    "history": "daemon.cli.commands.job_history:history",
    "init": "daemon.cli.commands.job_file_tools:init",
    "inspect": "daemon.cli.commands.job_history:inspect",
    "logs": "daemon.cli.commands.logs:job_logs",
    "notifications": "daemon.cli.commands.child_jobs:notifications",
    "periodic": ("Launch children of periodic jobs, and list their slots.", _PERIODIC),
    "plan": "daemon.cli.commands.plan:plan",
    "promote": "daemon.cli.commands.deployment:promote_job",
    "restart": "daemon.cli.commands.restart:restart",
    "revert": "daemon.cli.commands.job_versions:revert",
    "run": "daemon.cli.commands.run:run",
    "scale": "daemon.cli.commands.job_actions:scale",
    "start": "daemon.cli.commands.restart:start",
    "status": "daemon.cli.commands.status:status",
    "stop": "daemon.cli.commands.stop:stop",
    "validate": "daemon.cli.commands.job_file_tools:validate",
    "triggers": "daemon.cli.commands.triggers:of_job",
    "tag": ("Name versions of jobs.", _TAG),
}
_ALLOC: Tree = {
    "checks": "daemon.cli.commands.alloc:checks",
    "exec": "daemon.cli.commands.exec:execute",
    "fs": "daemon.cli.commands.alloc_fs:fs",
    "kept": "daemon.cli.commands.kept:kept",
    "restart": "daemon.cli.commands.alloc_actions:restart",
    "signal": "daemon.cli.commands.alloc_actions:signal",
    "stop": "daemon.cli.commands.alloc_actions:stop",
    "logs": "daemon.cli.commands.logs:logs",
    "status": "daemon.cli.commands.alloc:status",
}
_DEPLOYMENT: Tree = {
    "fail": "daemon.cli.commands.deployment:fail",
    "list": "daemon.cli.commands.deployment:index",
    "pause": "daemon.cli.commands.deployment:pause",
    "promote": "daemon.cli.commands.deployment:promote",
    "resume": "daemon.cli.commands.deployment:resume",
    "status": "daemon.cli.commands.deployment:status",
}
_AUTH: Tree = {
    "disable": "daemon.cli.commands.auth:disable",
    "enable": "daemon.cli.commands.auth:enable",
    "explain": "daemon.cli.commands.login:explain",
    "list": "daemon.cli.commands.auth:index",
    "tune": "daemon.cli.commands.auth:tune",
}
_IDENTITY: Tree = {
    "export": "daemon.cli.commands.identity:export",
}
_EVAL: Tree = {
    "list": "daemon.cli.commands.evaluation:index",
    "status": "daemon.cli.commands.evaluation:status",
}
_CALENDAR: Tree = {
    "apply": "daemon.cli.commands.calendar:apply",
    "delete": "daemon.cli.commands.calendar:delete",
    "history": "daemon.cli.commands.calendar:history",
    "import": "daemon.cli.commands.calendar:import_file",
    "init": "daemon.cli.commands.calendar:init",
    "inspect": "daemon.cli.commands.calendar:inspect",
    "list": "daemon.cli.commands.calendar:index",
    "status": "daemon.cli.commands.calendar:status",
}
_NODE: Tree = {
    "drain": "daemon.cli.commands.drain:drain",
    "eligibility": "daemon.cli.commands.drain:eligibility",
    "meta": (
        "Node metadata, for constraints of jobs.",
        {
            "apply": "daemon.cli.commands.node_metadata:apply",
            "read": "daemon.cli.commands.node_metadata:read",
        },
    ),
    "status": "daemon.cli.commands.node:status",
}
_POOL: Tree = {
    "check": "daemon.cli.commands.pool_check:check",
    "status": "daemon.cli.commands.pool:status",
}
_ACL: Tree = {
    "bootstrap": "daemon.cli.commands.acl:bootstrap",
    "policy": (
        "Policies of the jobs API.",
        {
            "apply": "daemon.cli.commands.acl:policy_apply",
            "delete": "daemon.cli.commands.acl:policy_delete",
            "info": "daemon.cli.commands.acl:policy_info",
            "list": "daemon.cli.commands.acl:policy_list",
        },
    ),
    "role": (
        "Roles: names for sets of policies.",
        {
            "create": "daemon.cli.commands.acl:role_create",
            "delete": "daemon.cli.commands.acl:role_delete",
            "info": "daemon.cli.commands.acl:role_info",
            "list": "daemon.cli.commands.acl:role_list",
            "update": "daemon.cli.commands.acl:role_update",
        },
    ),
    "token": (
        "Tokens of the jobs API.",
        {
            "create": "daemon.cli.commands.acl:token_create",
            "delete": "daemon.cli.commands.acl:token_delete",
            "info": "daemon.cli.commands.acl:token_info",
            "list": "daemon.cli.commands.acl:token_list",
            "self": "daemon.cli.commands.acl:token_self",
            "update": "daemon.cli.commands.acl:token_update",
        },
    ),
}
_POLICY: Tree = {
    "delete": "daemon.cli.commands.vault_policy:delete",
    "explain": "daemon.cli.commands.vault_policy:explain",
    "fmt": "daemon.cli.commands.vault_policy:fmt",
    "list": "daemon.cli.commands.vault_policy:index",
    "read": "daemon.cli.commands.vault_policy:read",
    "write": "daemon.cli.commands.vault_policy:write",
}
_TOKEN: Tree = {
    "capabilities": "daemon.cli.commands.vault_token:capabilities",
    "create": "daemon.cli.commands.vault_token:create",
    "lookup": "daemon.cli.commands.vault_token:lookup",
    "renew": "daemon.cli.commands.vault_token:renew",
    "revoke": "daemon.cli.commands.vault_token:revoke",
}
_VAR: Tree = {
    "get": "daemon.cli.commands.variable:get",
    "list": "daemon.cli.commands.variable:index",
    "lock": "daemon.cli.commands.var_lock:lock",
    "purge": "daemon.cli.commands.variable:purge",
    "put": "daemon.cli.commands.variable:put",
}
_NAMESPACE: Tree = {
    "apply": "daemon.cli.commands.namespace:apply",
    "delete": "daemon.cli.commands.namespace:delete",
    "inspect": "daemon.cli.commands.namespace:inspect",
    "list": "daemon.cli.commands.namespace:index",
    "status": "daemon.cli.commands.namespace:status",
}
_SERVICE: Tree = {
    "delete": "daemon.cli.commands.service:delete",
    "info": "daemon.cli.commands.service:info",
    "list": "daemon.cli.commands.service:index",
}
_RUNS: Tree = {
    "accept": "daemon.cli.commands.run_acts:accept",
    "approve": "daemon.cli.commands.run_acts:approve",
    "cancel": "daemon.cli.commands.run_acts:cancel",
    "reject": "daemon.cli.commands.run_acts:reject",
    "rerun": "daemon.cli.commands.run_acts:rerun",
    "skip": "daemon.cli.commands.run_acts:skip",
    "step": "daemon.cli.commands.run_acts:step",
    "list": "daemon.cli.commands.runs:index",
    "elements": "daemon.cli.commands.runs:elements",
    "outputs": "daemon.cli.commands.runs:outputs",
    "status": "daemon.cli.commands.runs:status",
    "wait": "daemon.cli.commands.runs:wait",
}
# Groups that can be called without a command, and the command that then runs.
_MEANT = {"queues": "list", "runs": "list"}
_SYSTEM: Tree = {
    "gc": "daemon.cli.commands.system:collect_garbage",
    "reconcile": (
        "Recount summaries.",
        {"summaries": "daemon.cli.commands.system:reconcile_summaries"},
    ),
}
_NOTIFY: Tree = {
    "test": "daemon.cli.commands.notify:test",
}
_QUEUES: Tree = {
    "delete": "daemon.cli.commands.queues:delete",
    "list": "daemon.cli.commands.queues:index",
    "set": "daemon.cli.commands.queues:change",
    "status": "daemon.cli.commands.queues:status",
}
COMMANDS: Tree = {
    "acl": ("Manage access to the jobs API.", _ACL),
    "alloc": ("Show and control allocations.", _ALLOC),
    "auth": ("Manage login methods.", _AUTH),
    "completion": "daemon.cli.core.completion:completion",
    "delete": "daemon.cli.commands.vault_paths:delete",
    "deployment": ("Show, promote, fail and pause deployments.", _DEPLOYMENT),
    "eval": ("Show evaluations.", _EVAL),
    "help": "daemon.cli.core.help:help_of",
    "identity": ("The daemon as an issuer of identity tokens.", _IDENTITY),
    "job": ("Run, change and show jobs.", _JOB),
    "list": "daemon.cli.commands.vault_paths:index",
    "login": "daemon.cli.commands.login:login",
    "logout": "daemon.cli.commands.login:logout",
    "mcp": "daemon.cli.commands.mcp:mcp",
    "calendar": ("Days and hours on which jobs may begin.", _CALENDAR),
    "namespace": ("Separate the jobs of different users.", _NAMESPACE),
    "notify": ("Receivers of notifications.", _NOTIFY),
    "node": ("Show nodes, drain them, and change their eligibility.", _NODE),
    "fmt": "daemon.cli.commands.job_file_tools:fmt",
    "freeze": "daemon.cli.commands.freeze:freeze",
    "freezes": "daemon.cli.commands.freeze:freezes",
    "thaw": "daemon.cli.commands.freeze:thaw",
    "queues": ("Queues of runs and their slots.", _QUEUES),
    "runs": ("Show the runs of workflows.", _RUNS),
    "service": ("Show registered services.", _SERVICE),
    "system": ("Start garbage collection and similar maintenance.", _SYSTEM),
    "var": ("Store encrypted values for jobs.", _VAR),
    "pool": ("Show node pools and clusters.", _POOL),
    "policy": ("Policies of the Vault API, and explanations of access.", _POLICY),
    "read": "daemon.cli.commands.vault_paths:read",
    "write": "daemon.cli.commands.vault_paths:write",
    "top": "daemon.cli.commands.top:top",
    "token": ("Create, look up, renew and revoke tokens.", _TOKEN),
    "ui": "daemon.cli.commands.ui:ui",
    "version": "daemon.cli.commands.version:version",
    # Short forms of frequent commands.
    "exec": _ALLOC["exec"],
    "explain": _JOB["explain"],
    "init": _JOB["init"],
    "inspect": _JOB["inspect"],
    "logs": _ALLOC["logs"],
    "plan": _JOB["plan"],
    "run": _JOB["run"],
    "status": _JOB["status"],
    "start": _JOB["start"],
    "stop": _JOB["stop"],
    "validate": _JOB["validate"],
}


class LazyGroup(CommandGroup):
    """A group that imports a command on first use."""

    def __init__(self, name: str, tree: Tree, help: str) -> None:  # noqa: A002  # click's parameter name
        super().__init__(name, help=help, context_settings=_HELP)
        self._tree = dict(tree)

    def add_lazily(self, name: str, entry: str) -> None:
        """Add the command that `entry` (`module:function`) names; its module is imported later."""
        self._tree[name] = entry

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the name of the default command if it is missing."""
        meant = _MEANT.get(self.name or "")
        first = args[0] if args else ""
        if meant and first not in self._tree and first not in _HELP["help_option_names"]:
            args = [meant, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return sorted({*self.commands, *self._tree})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, or None if the name is unknown."""
        if cmd_name in self._tree and cmd_name not in self.commands:
            self.add_command(_load(cmd_name, self._tree[cmd_name]), cmd_name)
        command = self.commands.get(cmd_name)
        if command is not None and ctx.resilient_parsing:  # a shell completes a word
            from daemon.cli.core.completion import offer_names  # only completion needs it

            offer_names(command)
        return command


def _load(name: str, entry: str | Group) -> click.Command:
    if not isinstance(entry, str):
        summary, tree = entry
        return LazyGroup(name, tree, summary)
    module, _, function = entry.partition(":")
    command = getattr(importlib.import_module(module), function)
    if not isinstance(command, click.Command):
        raise TypeError(f"{entry} is not a command")
    return command


class CommandLine(LazyGroup):
    """The root of all commands. It converts their results and errors to exit statuses."""

    def __init__(self, name: str, tree: Tree, help: str) -> None:  # noqa: A002  # click's parameter name
        super().__init__(name, tree, help)
        self.epilog = "Options and examples of a command: steward help COMMAND"
        self.params.append(
            click.Option(
                ["-v", "--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_version,
                help="Print the version.",
            )
        )

    def main(  # type: ignore[override]  # callers must not set click's options
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **_: object
    ) -> NoReturn:
        """Run a command and exit."""
        if f"_{(prog_name or '').upper()}_COMPLETE" in os.environ:
            from daemon.cli.core.completion import accept_one_dash  # only completion needs it

            accept_one_dash()
        words = [short_option(word) for word in (sys.argv[1:] if args is None else args)]
        if sys.stdin is None:  # the caller closed it; commands then read an empty input
            sys.stdin = io.TextIOWrapper(io.BytesIO())
        try:
            words = with_boolean_values(self, words)
            status: object = click.Group.main(self, words, prog_name, standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()  # else the interpreter would report a full disk at its end
        except click.Abort as error:
            sys.exit(EXIT_INTERRUPTED if _interrupted(error) else EXIT_ERROR)
        except click.ClickException as error:
            _complain_of(error)
            # click's own statuses for wrong usage are not used here, but a command's status is.
            sys.exit(error.exit_code if error.exit_code > EXIT_USAGE else EXIT_ERROR)
        except StewardError as error:
            _complain(str(error))
            sys.exit(EXIT_ERROR)
        except UnicodeError:
            _complain(_not_utf8(words))
            sys.exit(EXIT_ERROR)
        except OSError as error:
            _complain(f"cannot write the output or use a file: {error}")
            _drop_output()
            sys.exit(EXIT_ERROR)
        sys.exit(status if isinstance(status, int) else 0)


def _print_version(ctx: click.Context, _: click.Parameter, is_set: bool) -> None:
    if is_set and not ctx.resilient_parsing:
        click.echo(f"Steward v{VERSION}")
        ctx.exit()


def _not_utf8(words: Sequence[str]) -> str:
    """Return an error message that names the argument or variable that is not UTF-8.

    The message does not show the value, because it may be a secret.
    """
    for position, word in enumerate(words, 1):
        if not _is_utf8(word):
            return f"argument {position} is not valid UTF-8: write it in UTF-8"
    for name, value in os.environ.items():
        if name.startswith(_OUR_VARIABLES) and not _is_utf8(value):
            return f"the environment variable {name} is not valid UTF-8: write it in UTF-8"
    return "the input is not valid UTF-8: write it in UTF-8"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _interrupted(error: click.Abort) -> bool:
    return isinstance(error.__cause__, KeyboardInterrupt)


def _complain_of(error: click.ClickException) -> None:
    words = error.format_message()
    if words.startswith("Usage:"):  # a group without a command: the message is its help
        click.echo(words)
        return
    _complain(words)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"See: {error.ctx.command_path} --help", err=True)


def _drop_output() -> None:
    """Discard further output, so that it causes no second error at the end."""
    if sys.stdout is not None:
        with suppress(OSError, ValueError):  # the output is lost either way
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(words: str) -> None:
    click.echo(f"steward: {visible_lines(words)}", err=True)


cli = CommandLine("steward", COMMANDS, "Run jobs on this host, and inspect them.")
