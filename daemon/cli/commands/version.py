"""`version`: the version of Steward."""

import click

from daemon.cli.core.options import with_output
from daemon.cli.core.output import Screen
from daemon.version import VERSION, build


@click.command()
@with_output
def version(screen: Screen) -> None:
    """Print the version of this program.

    Example: steward version -json
    """
    if not screen.wants_document:
        screen.line(f"Steward v{VERSION}")
        return
    import platform  # slow to import, and needed only here

    import msgspec

    info = {"Name": "Steward", "Version": VERSION, "Python": platform.python_version(), **build()}
    screen.document(msgspec.json.encode(info))
