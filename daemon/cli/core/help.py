"""Help lines of all commands, in groups, and the command `steward help`.

The lines are not stored with the commands, because listing forty commands must not import forty
modules. A line has at most 62 columns, so that it fits into 80 columns with the command's name.
"""

from collections.abc import Mapping

import click

# Titles of groups, with the names of commands and their lines.
Sections = Mapping[str, Mapping[str, str]]

_COMMANDS = "Commands"

_JOB: Sections = {
    "Run and watch": {
        "init": "Write an example job file",
        "validate": "Check a job file without running it",
        "plan": "Show what running a job file would change",
        "run": "Submit a job file and follow it",
        "dispatch": "Run a parameterized job once, with a payload",
        "status": "List the jobs, or show one with its state and reason",
        "explain": "Explain why parts of a job are not running",
        "graph": "Show the steps of a workflow",
        "logs": "Print the output of a job's tasks",
    },
    "Inspect": {
        "allocs": "List the allocations of a job",
        "deployments": "List the deployments of a job",
        "history": "List the versions of a job and their differences",
        "inspect": "Print the definition of a job as JSON",
        "notifications": "List the notifications about a job",
        "triggers": "List the ended runs of the jobs that a job follows",
    },
    "Change": {
        "start": "Start a stopped job again",
        "stop": "Stop jobs",
        "restart": "Restart the tasks of a job, some allocations at a time",
        "scale": "Change the count of a task group",
        "promote": "Promote the canaries of a job's newest deployment",
        "revert": "Return to an older version of a job",
        "eval": "Re-evaluate a job",
        "periodic": "Launch, pause and list the runs of a periodic job",
        "action": "Run an action of a job inside a task",
        "tag": "Name versions of a job",
    },
}
_LINES: Mapping[str, Sections] = {
    "": {
        "Run and watch": {
            "init": _JOB["Run and watch"]["init"],
            "validate": _JOB["Run and watch"]["validate"],
            "fmt": "Format job files and variable files",
            "plan": _JOB["Run and watch"]["plan"],
            "run": _JOB["Run and watch"]["run"],
            "status": _JOB["Run and watch"]["status"],
            "explain": _JOB["Run and watch"]["explain"],
            "logs": "Print the output of a task, or of all tasks of a job",
            "top": "Watch jobs and allocations with live CPU and memory",
            "ui": "Print the address of the web interface",
        },
        "Inspect": {
            "job": "All commands about jobs: explain, history, dispatch, ...",
            "alloc": "Allocations: status, files, checks, restart",
            "deployment": "Deployments: status, promote, fail, pause",
            "eval": "Evaluations: why something is not placed",
            "runs": "Runs of workflows: list, steps, wait",
            "freeze": "Hold runs, steps or changes of jobs",
            "freezes": "List the freezes",
            "thaw": "End a freeze",
            "queues": "Queues of runs: slots, and runs that wait",
            "inspect": _JOB["Inspect"]["inspect"],
            "node": "Nodes: status, drain, eligibility, metadata",
            "pool": "Node pools and clusters: status, check",
            "service": "Registered services and their addresses",
        },
        "Change": {
            "start": _JOB["Change"]["start"],
            "stop": _JOB["Change"]["stop"],
            "exec": "Run a command inside a task",
            "var": "Encrypted variables and their locks",
            "namespace": "Namespaces: create, change, delete",
            "calendar": "Calendars: days and hours on which jobs may begin",
        },
        "Access": {
            "login": "Log in with the identity of this cloud machine",
            "logout": "Revoke the stored token and delete it",
            "acl": "Policies, roles and tokens of the jobs API",
            "auth": "Login methods: enable, tune, explain a login",
            "identity": "Documents for services that verify the daemon's tokens",
            "policy": "Policies of the Vault API, and why access is refused",
            "token": "Tokens: create, look up, renew, revoke",
            "read": "Read a path of the Vault API",
            "write": "Write to a path of the Vault API",
            "list": "List the names below a path of the Vault API",
            "delete": "Delete a path of the Vault API",
        },
        "Operate": {
            "agent": "Run the daemon in the foreground",
            "install": "Install Steward as a system service",
            "uninstall": "Stop the system service and remove it",
            "mcp": "Serve tools for an assistant",
            "notify": "Receivers of notifications: send a test message",
            "operator": "Snapshots, checks, audit log, metrics, root key",
            "system": "Collect garbage and recount summaries",
            "help": "Show the help of a command",
            "completion": "Print the completion script of a shell",
            "version": "Print the version",
        },
    },
    "job": _JOB,
    "notify": {_COMMANDS: {"test": "Send a test message to each receiver"}},
    "job periodic": {
        _COMMANDS: {
            "force": "Launch a run now",
            "next": "List the next ten launches",
            "pause": "Skip launches until the job is resumed",
            "resume": "Launch runs on schedule again",
            "slots": "List past slots and their outcomes",
        }
    },
    "job tag": {
        _COMMANDS: {
            "apply": "Give a version a name",
            "unset": "Remove the name of a version",
        }
    },
    "alloc": {
        "Inspect": {
            "status": "List the allocations, or show one with its tasks",
            "logs": "Print the output of a task",
            "fs": "List a directory of an allocation, or print a file",
            "kept": "List or download the kept files of its ended tasks",
            "checks": "Show the latest results of service checks",
        },
        "Change": {
            "exec": "Run a command inside a task",
            "restart": "Restart a task, or all running tasks",
            "signal": "Send a signal to a task, or to all running tasks",
            "stop": "Stop an allocation; the job may get a replacement",
        },
    },
    "deployment": {
        _COMMANDS: {
            "list": "List the deployments",
            "status": "Show a deployment with its groups",
            "promote": "Let healthy canaries replace the old version",
            "fail": "Fail a deployment; groups with auto_revert roll back",
            "pause": "Pause a deployment",
            "resume": "Resume a paused deployment",
        }
    },
    "auth": {
        _COMMANDS: {
            "list": "List the login methods",
            "enable": "Enable a login method",
            "tune": "Change the token settings of a login method",
            "disable": "Disable a login method and revoke its tokens",
            "explain": "Test a login and show the rule that refuses it",
        }
    },
    "identity": {_COMMANDS: {"export": "Write the issuer's public documents to a directory"}},
    "eval": {
        _COMMANDS: {
            "list": "List the evaluations",
            "status": "Show an evaluation and its placement failures",
        }
    },
    "node": {
        _COMMANDS: {
            "status": "List the nodes, or show one with its resources",
            "drain": "Drain a node, or cancel its drain",
            "eligibility": "Make a node eligible or ineligible for placements",
            "meta": "Read and change the metadata of a node",
        }
    },
    "node meta": {
        _COMMANDS: {
            "read": "Show the metadata of a node",
            "apply": "Change the metadata of a node",
        }
    },
    "pool": {
        _COMMANDS: {
            "status": "List the pools, or show the hosts of one",
            "check": "Test the connection to a cluster with a small job",
        }
    },
    "acl": {
        _COMMANDS: {
            "bootstrap": "Create the first management token",
            "policy": "Policies of the jobs API",
            "role": "Roles: names for sets of policies",
            "token": "Tokens of the jobs API",
        }
    },
    "acl policy": {
        _COMMANDS: {
            "apply": "Create or change a policy from a file",
            "delete": "Delete a policy",
            "info": "Show a policy",
            "list": "List the policies",
        }
    },
    "acl role": {
        _COMMANDS: {
            "create": "Create a role",
            "delete": "Delete a role",
            "info": "Show a role",
            "list": "List the roles",
            "update": "Change a role",
        }
    },
    "acl token": {
        _COMMANDS: {
            "create": "Create a token; its secret is shown once",
            "delete": "Delete a token",
            "info": "Show a token",
            "list": "List the tokens of both APIs",
            "self": "Show the token in use",
            "update": "Change a token",
        }
    },
    "policy": {
        _COMMANDS: {
            "list": "List the policies",
            "read": "Print a policy",
            "write": "Create or change a policy from a file",
            "delete": "Delete a policy",
            "explain": "Show the rule that allows or refuses a request",
            "fmt": "Format a policy file",
        }
    },
    "token": {
        _COMMANDS: {
            "capabilities": "Show the capabilities of a token on a path",
            "create": "Create a token with the same or fewer capabilities",
            "lookup": "Show a token",
            "renew": "Extend the TTL of a token",
            "revoke": "Revoke a token and all tokens created with it",
        }
    },
    "var": {
        _COMMANDS: {
            "get": "Print the values of a variable",
            "list": "List the variables",
            "lock": "Run a command while holding a variable's lock",
            "purge": "Delete a variable",
            "put": "Write values to a variable",
        }
    },
    "calendar": {
        _COMMANDS: {
            "apply": "Create or change a calendar",
            "delete": "Delete a calendar that nothing uses",
            "history": "List the versions of a calendar",
            "import": "Add the holidays of an iCalendar file",
            "init": "Print an example calendar",
            "inspect": "Print a calendar as JSON",
            "list": "List the calendars",
            "status": "Show whether a calendar is open, and its next days",
        }
    },
    "namespace": {
        _COMMANDS: {
            "apply": "Create or change a namespace",
            "delete": "Delete an empty namespace",
            "inspect": "Print a namespace as JSON",
            "list": "List the namespaces",
            "status": "Show a namespace",
        }
    },
    "queues": {
        _COMMANDS: {
            "list": "List the queues",
            "status": "Show a queue with its runs",
            "set": "Set the number of slots of a queue",
            "delete": "Delete the limit of a queue",
        }
    },
    "runs": {
        _COMMANDS: {
            "list": "List the runs of all workflows, or of one job",
            "elements": "List the elements of a step of a run",
            "outputs": "Show the outputs of the steps of a run",
            "status": "Show a run with its steps",
            "wait": "Wait for the end of a run, and return its exit code",
            "approve": "Approve a step at its gate",
            "reject": "Reject a step at its gate",
            "cancel": "Cancel a run",
            "skip": "Skip steps that have not begun",
            "accept": "Accept failed steps as good",
            "rerun": "Run ended steps again, and all later steps",
            "step": "Run one step without the others",
        }
    },
    "service": {
        _COMMANDS: {
            "delete": "Delete an instance of a service",
            "info": "Show the addresses of a service's instances",
            "list": "List the services",
        }
    },
    "system": {
        _COMMANDS: {
            "gc": "Collect garbage now",
            "reconcile": "Recount summaries",
        }
    },
    "system reconcile": {_COMMANDS: {"summaries": "Recount the summaries of all jobs"}},
    "operator": {
        _COMMANDS: {
            "api": "Call any endpoint of the API",
            "audit": "List the audit log, newest first",
            "check": "Check the store for damage and inconsistency",
            "confinement": "Show the limits of all processes, read from the kernel",
            "debug": "Collect diagnostics into a file, without secrets",
            "fault": "List and release failed units of Steward's own work",
            "metrics": "Print the metrics",
            "rekey": "Encrypt all secrets under a new root key",
            "snapshot": "Save, inspect, test and restore snapshots",
        }
    },
    "operator fault": {
        _COMMANDS: {
            "list": "List the failed units",
            "release": "Retry a failed unit",
        }
    },
    "operator snapshot": {
        _COMMANDS: {
            "drill": "Prove that a snapshot can be restored",
            "inspect": "Check a snapshot and show its contents",
            "restore": "Replace the store with a snapshot",
            "save": "Write a snapshot while the daemon runs",
        }
    },
}


def sections(path: str) -> Sections:
    """Return the help lines of a group's commands.

    `path` is the name of the group, such as `job periodic`, or empty for the root.
    """
    return _LINES.get(path, {})


def path_of(ctx: click.Context) -> str:
    """Return the full name of a command, without the program's name."""
    return ctx.command_path.partition(" ")[2]


def write_commands(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the commands of a group with their help lines, in sections with titles."""
    titled_commands = sections(path_of(ctx))
    width = max((len(name) for lines in titled_commands.values() for name in lines), default=0)
    for title, lines in titled_commands.items():
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_of(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of COMMAND, or the list of all commands.

    Example: steward help job run
    """
    root = ctx.find_root()
    context, command, rest = root, root.command, list(words)
    while rest:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"{command.name!r} has no subcommands", context)
        name, inner, rest = command.resolve_command(context, rest)
        if inner is None:
            raise click.UsageError(f"no command {name!r}", context)
        command = inner
        context = click.Context(command, info_name=name, parent=context)
    click.echo(command.get_help(context))
