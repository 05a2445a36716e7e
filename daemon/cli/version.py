"""`version`: which Steward this is."""

import click

from daemon.cli.options import shown
from daemon.cli.output import Screen
from daemon.version import VERSION, build


@click.command()
@shown
def version(screen: Screen) -> None:
    """Print the version of this program.

    Example: steward version -json
    """
    if not screen.wants_document:
        screen.line(f"Steward v{VERSION}")
        return
    import platform  # slow to import, and of use here alone

    import msgspec

    about = {"Name": "Steward", "Version": VERSION, "Python": platform.python_version(), **build()}
    screen.document(msgspec.json.encode(about))
