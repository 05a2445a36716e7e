"""The executable: `steward agent` runs the daemon, everything else is the command line."""

import gc
import sys
from typing import TYPE_CHECKING

from daemon.dashes import two_dashes

if TYPE_CHECKING:
    from daemon.cli.parser import CommandLine


def main() -> None:
    """Run what the arguments ask for."""
    arguments = two_dashes(sys.argv[1:])
    if arguments[:1] == ["agent"]:
        # Alone: of the command line the daemon needs nothing, and should start at once. What is
        # imported stays: until it is there (`daemon.main`), garbage is looked for seldom.
        gc.set_threshold(20_000, 1000)
        # Before all that the daemon is made of: what is imported by then is in both processes.
        from daemon.launcher.begin import begin

        channel = begin()
        from daemon.agent import start

        start(arguments[1:], channel)
    command_line().main(arguments, prog_name="steward")


def command_line() -> "CommandLine":
    """Return all commands, those of the client and those of the daemon's machine."""
    from daemon.cli.parser import cli

    # By name: a short command has no time to import the daemon.
    cli.add_lazily("agent", "daemon.agent:agent")
    cli.add_lazily("install", "daemon.installation:install_command")
    cli.add_lazily("operator", "daemon.operator:operator")
    cli.add_lazily("uninstall", "daemon.installation:uninstall_command")
    return cli


if __name__ == "__main__":
    main()
