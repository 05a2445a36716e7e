"""The tree of commands, and how a command ends: its errors, its exit status.

A module is imported when its command is called, so that a short command starts fast. To add a
verb, write its command in a module here and name it in `COMMANDS`; a group is a map of its own.

Exit statuses: 0 all went well; 1 it did not; 130 interrupted; those of a command of its own
(`job run`: 2 when the job could not be placed) stand in its help.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn, Union

import click

from daemon.dashes import short_option
from daemon.version import VERSION
from storage.errors import StewardError

EXIT_ERROR = 1
EXIT_USAGE = 2  # as click has it
EXIT_INTERRUPTED = 130  # as a shell reports a program that SIGINT ended

# A command is `module:function`; a group is its help and its commands.
Tree = Mapping[str, Union[str, "Group"]]
Group = tuple[str, Tree]

_PERIODIC: Tree = {
    "force": "daemon.cli.children:periodic_force",
    "next": "daemon.cli.children:periodic_next",
    "pause": "daemon.cli.children:periodic_pause",
    "resume": "daemon.cli.children:periodic_resume",
    "slots": "daemon.cli.children:periodic_slots",
}
_TAG: Tree = {
    "apply": "daemon.cli.versions:tag",
    "unset": "daemon.cli.versions:untag",
}
_JOB: Tree = {
    "action": "daemon.cli.session:action",
    "allocs": "daemon.cli.status:allocs",
    "deployments": "daemon.cli.deployment:of_job",
    "dispatch": "daemon.cli.children:dispatch",
    "eval": "daemon.cli.change:evaluate",
    "explain": "daemon.cli.explain:explain",
    "history": "daemon.cli.history:history",
    "init": "daemon.cli.write:init",
    "inspect": "daemon.cli.history:inspect",
    "logs": "daemon.cli.logs:job_logs",
    "notifications": "daemon.cli.children:notifications",
    "periodic": ("Launch children of periodic jobs, and look at their slots.", _PERIODIC),
    "plan": "daemon.cli.plan:plan",
    "promote": "daemon.cli.deployment:promote_job",
    "restart": "daemon.cli.restart:restart",
    "revert": "daemon.cli.versions:revert",
    "run": "daemon.cli.run:run",
    "scale": "daemon.cli.change:scale",
    "start": "daemon.cli.restart:start",
    "status": "daemon.cli.status:status",
    "stop": "daemon.cli.stop:stop",
    "validate": "daemon.cli.write:validate",
    "tag": ("Name versions of jobs.", _TAG),
}
_ALLOC: Tree = {
    "checks": "daemon.cli.alloc:checks",
    "exec": "daemon.cli.session:execute",
    "fs": "daemon.cli.files:fs",
    "restart": "daemon.cli.steer:restart",
    "signal": "daemon.cli.steer:signal",
    "stop": "daemon.cli.steer:stop",
    "logs": "daemon.cli.logs:logs",
    "status": "daemon.cli.alloc:status",
}
_DEPLOYMENT: Tree = {
    "fail": "daemon.cli.deployment:fail",
    "list": "daemon.cli.deployment:index",
    "pause": "daemon.cli.deployment:pause",
    "promote": "daemon.cli.deployment:promote",
    "resume": "daemon.cli.deployment:resume",
    "status": "daemon.cli.deployment:status",
}
_AUTH: Tree = {
    "disable": "daemon.cli.auth:disable",
    "enable": "daemon.cli.auth:enable",
    "explain": "daemon.cli.login:explain",
    "list": "daemon.cli.auth:index",
    "tune": "daemon.cli.auth:tune",
}
_IDENTITY: Tree = {
    "export": "daemon.cli.identity:export",
}
_EVAL: Tree = {
    "list": "daemon.cli.evaluation:index",
    "status": "daemon.cli.evaluation:status",
}
_NODE: Tree = {
    "drain": "daemon.cli.drain:drain",
    "eligibility": "daemon.cli.drain:eligibility",
    "meta": (
        "Metadata of nodes, by which jobs choose.",
        {
            "apply": "daemon.cli.nodemeta:apply",
            "read": "daemon.cli.nodemeta:read",
        },
    ),
    "status": "daemon.cli.node:status",
}
_POOL: Tree = {
    "check": "daemon.cli.poolcheck:check",
    "status": "daemon.cli.pool:status",
}
_ACL: Tree = {
    "bootstrap": "daemon.cli.acl:bootstrap",
    "policy": (
        "Policies of the jobs API.",
        {
            "apply": "daemon.cli.acl:policy_apply",
            "delete": "daemon.cli.acl:policy_delete",
            "info": "daemon.cli.acl:policy_info",
            "list": "daemon.cli.acl:policy_list",
        },
    ),
    "role": (
        "Roles: names for sets of policies.",
        {
            "create": "daemon.cli.acl:role_create",
            "delete": "daemon.cli.acl:role_delete",
            "info": "daemon.cli.acl:role_info",
            "list": "daemon.cli.acl:role_list",
            "update": "daemon.cli.acl:role_update",
        },
    ),
    "token": (
        "Tokens of the jobs API.",
        {
            "create": "daemon.cli.acl:token_create",
            "delete": "daemon.cli.acl:token_delete",
            "info": "daemon.cli.acl:token_info",
            "list": "daemon.cli.acl:token_list",
            "self": "daemon.cli.acl:token_self",
            "update": "daemon.cli.acl:token_update",
        },
    ),
}
_POLICY: Tree = {
    "delete": "daemon.cli.policy:delete",
    "explain": "daemon.cli.policy:explain",
    "fmt": "daemon.cli.policy:fmt",
    "list": "daemon.cli.policy:index",
    "read": "daemon.cli.policy:read",
    "write": "daemon.cli.policy:write",
}
_TOKEN: Tree = {
    "capabilities": "daemon.cli.token:capabilities",
    "create": "daemon.cli.token:create",
    "lookup": "daemon.cli.token:lookup",
    "renew": "daemon.cli.token:renew",
    "revoke": "daemon.cli.token:revoke",
}
_VAR: Tree = {
    "get": "daemon.cli.variable:get",
    "list": "daemon.cli.variable:index",
    "lock": "daemon.cli.lock:lock",
    "purge": "daemon.cli.variable:purge",
    "put": "daemon.cli.variable:put",
}
_NAMESPACE: Tree = {
    "apply": "daemon.cli.namespace:apply",
    "delete": "daemon.cli.namespace:delete",
    "inspect": "daemon.cli.namespace:inspect",
    "list": "daemon.cli.namespace:index",
    "status": "daemon.cli.namespace:status",
}
_SERVICE: Tree = {
    "delete": "daemon.cli.service:delete",
    "info": "daemon.cli.service:info",
    "list": "daemon.cli.service:index",
}
_SYSTEM: Tree = {
    "gc": "daemon.cli.system:collect_garbage",
    "reconcile": (
        "Count anew what is counted.",
        {"summaries": "daemon.cli.system:reconcile_summaries"},
    ),
}
COMMANDS: Tree = {
    "acl": ("Say who may do what with the jobs API.", _ACL),
    "alloc": ("Look at allocations.", _ALLOC),
    "auth": ("Login methods, and who gets in.", _AUTH),
    "delete": "daemon.cli.path:delete",
    "deployment": ("Look at deployments and steer them.", _DEPLOYMENT),
    "eval": ("Look at evaluations.", _EVAL),
    "identity": ("The daemon as an issuer of identity tokens.", _IDENTITY),
    "job": ("Run jobs and look at them.", _JOB),
    "list": "daemon.cli.path:index",
    "login": "daemon.cli.login:login",
    "logout": "daemon.cli.login:logout",
    "namespace": ("Keep the jobs of different people apart.", _NAMESPACE),
    "node": ("Look at nodes, empty them, keep new work away.", _NODE),
    "fmt": "daemon.cli.write:fmt",
    "service": ("Look at what jobs offer to each other.", _SERVICE),
    "system": ("Tidy up now rather than later.", _SYSTEM),
    "var": ("Keep values for jobs, sealed.", _VAR),
    "pool": ("Look at pools, those of clusters as well.", _POOL),
    "policy": ("Policies: what the holder of a token may do, and why.", _POLICY),
    "read": "daemon.cli.path:read",
    "write": "daemon.cli.path:write",
    "token": ("Make, look up, renew and revoke tokens.", _TOKEN),
    "ui": "daemon.cli.ui:ui",
    "version": "daemon.cli.version:version",
    # Short forms of what is typed most.
    "exec": _ALLOC["exec"],
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

_HELP = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def __init__(self, name: str, tree: Tree, help: str) -> None:  # noqa: A002  # click's name
        super().__init__(name, help=help, context_settings=_HELP)
        self._tree = dict(tree)

    def add_lazily(self, name: str, entry: str) -> None:
        """Add a command of another part as `module:function`."""
        self._tree[name] = entry

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return sorted({*self.commands, *self._tree})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None when there is none of that name."""
        if cmd_name in self._tree and cmd_name not in self.commands:
            self.add_command(_load(cmd_name, self._tree[cmd_name]), cmd_name)
        found = self.commands.get(cmd_name)
        if found is not None and ctx.resilient_parsing:  # a shell completes a word
            from daemon.cli.completion import offer_names  # nobody else needs it

            offer_names(found)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant. Raises `UsageError`, which names the nearest."""
        name = args[0]
        known = self.list_commands(ctx)
        if name in known or name.startswith("-"):
            return super().resolve_command(ctx, args)
        import difflib  # slow to import, and of use here alone

        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        raise click.UsageError(f"no command {name!r}; {remedy}", ctx)


def _load(name: str, entry: str | Group) -> click.Command:
    if not isinstance(entry, str):
        about, tree = entry
        return LazyGroup(name, tree, about)
    module, _, function = entry.partition(":")
    command = getattr(importlib.import_module(module), function)
    if not isinstance(command, click.Command):
        raise TypeError(f"{entry} is not a command")
    return command


class CommandLine(LazyGroup):
    """The whole command line: turns every way in which a command can end into an exit status."""

    def __init__(self, name: str, tree: Tree, help: str) -> None:  # noqa: A002  # click's name
        super().__init__(name, tree, help)
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

    def main(  # type: ignore[override]  # of its many settings none is for others to choose
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **_: object
    ) -> NoReturn:
        """Run a command and exit."""
        if f"_{(prog_name or '').upper()}_COMPLETE" in os.environ:
            from daemon.cli.completion import accept_one_dash  # nobody else needs it

            accept_one_dash()
        words = [short_option(word) for word in (sys.argv[1:] if args is None else args)]
        try:
            status: object = click.Group.main(self, words, prog_name, standalone_mode=False)
        except click.Abort as error:
            sys.exit(EXIT_INTERRUPTED if _interrupted(error) else EXIT_ERROR)
        except click.ClickException as error:
            _complain_of(error)
            # click's own statuses for wrong usage mean nothing here; a command's do.
            sys.exit(error.exit_code if error.exit_code > EXIT_USAGE else EXIT_ERROR)
        except StewardError as error:
            _complain(str(error))
            sys.exit(EXIT_ERROR)
        sys.exit(status if isinstance(status, int) else 0)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"Steward v{VERSION}")
        ctx.exit()


def _interrupted(error: click.Abort) -> bool:
    return isinstance(error.__cause__, KeyboardInterrupt)


def _complain_of(error: click.ClickException) -> None:
    words = error.format_message()
    if words.startswith("Usage:"):  # a group without its command: the message is the help
        click.echo(words)
        return
    _complain(words)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"See: {error.ctx.command_path} --help", err=True)


def _complain(words: str) -> None:
    click.echo(f"steward: {words}", err=True)


cli = CommandLine("steward", COMMANDS, "Run jobs on this machine, and look at them.")
