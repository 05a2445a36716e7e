"""`version`: which Steward this is."""

import platform

import click
import msgspec

from daemon.cli.options import shown
from daemon.cli.output import Screen
from daemon.version import BUILD, VERSION


@click.command()
@shown
def version(screen: Screen) -> None:
    """Print the version of this program."""
    if not screen.wants_document:
        screen.line(f"Steward v{VERSION}")
        return
    about = {"Name": "Steward", "Version": VERSION, "Python": platform.python_version(), **BUILD}
    screen.document(msgspec.json.encode(about))
