"""Groups of commands: their help, and suggestions for a mistyped command."""

import click

from daemon.cli.core.boolean_options import with_boolean_values


class CommandGroup(click.Group):
    """A group whose help describes its commands with the lines in `daemon/cli/core/help.py`."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with its help line."""
        from daemon.cli.core.help import write_commands  # only help needs these lines

        write_commands(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name.

        Raises `UsageError`, whose message suggests the most similar command.
        """
        name = args[0]
        command_names = self.list_commands(ctx)
        if name in command_names or name.startswith("-"):
            found, command, rest = super().resolve_command(ctx, args)
            if command is not None:
                rest = with_boolean_values(command, rest, ctx)
            return found, command, rest
        import difflib  # slow to import, and needed only here

        similar = difflib.get_close_matches(name, command_names, n=1)
        remedy = (
            f"did you mean {similar[0]!r}?"
            if similar
            else f"the commands are: {', '.join(command_names)}"
        )
        raise click.UsageError(f"no command {name!r}; {remedy}", ctx)
