"""Entry point: `steward agent` runs the daemon, and every other command is a client command."""

import gc
import signal
import sys
from typing import TYPE_CHECKING

from daemon.text.option_syntax import normalize_options

if TYPE_CHECKING:
    from daemon.cli.core.command_tree import CommandLine


def main() -> None:
    """Run the command that the arguments name."""
    arguments = normalize_options(sys.argv[1:])
    if arguments[:1] == ["agent"]:
        # The daemon starts without the command line's modules, so that it starts fast. Objects of
        # imported modules are never freed, so garbage collection is rare until
        # `daemon.process.main` is imported.
        gc.set_threshold(20_000, 1000)
        # This import precedes the daemon's own modules, because the launcher process shares all
        # modules imported before its fork.
        from daemon.launcher.fork import begin

        # The parent may block signals, which the daemon and its launcher would inherit.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        channel = begin()
        from daemon.process.agent_start import start_daemon

        start_daemon(arguments[1:], channel)
    command_line().main(arguments, prog_name="steward")


def command_line() -> "CommandLine":
    """Return the command group with the client commands and the commands for the daemon's host."""
    from daemon.cli.core.command_tree import cli

    # Commands are registered by name: importing the daemon would slow down every short command.
    cli.add_lazily("agent", "daemon.process.agent:agent")
    cli.add_lazily("install", "daemon.process.installation:install_command")
    cli.add_lazily("operator", "daemon.admin.operator:operator")
    cli.add_lazily("uninstall", "daemon.process.installation:uninstall_command")
    return cli


if __name__ == "__main__":
    main()
