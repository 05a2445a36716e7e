"""`steward operator`: the file as a whole, saved, checked, sealed under a new key; and the audit."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec

from daemon.cli.audit import audit
from daemon.cli.confinement import confinement
from daemon.cli.debug import debug
from daemon.cli.raw import api, metrics
from daemon.datadir import find_store
from daemon.loading import load
from storage.archive import unpacked
from storage.check import check
from storage.errors import Refused, StewardError, StorageUnusable, leaves
from storage.schema import prepare
from storage.snapshot import Summary, inspect, restore, save
from storage.store import FILE_NAME

_FILE = click.argument("file", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
_DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Directory of the store [default: as `steward agent`].",
)


@click.group()
def operator() -> None:
    """Tend to the daemon and its file."""


operator.add_command(audit)
operator.add_command(api)
operator.add_command(confinement)
operator.add_command(debug)
operator.add_command(metrics)


@operator.group()
def snapshot() -> None:
    """Save, check and restore the whole store."""


@snapshot.command(name="save")
@_FILE
@_DATA_DIR
@_JSON
def save_command(file: Path, data_dir: Path | None, *, as_json: bool) -> None:
    """Write a snapshot of the store to FILE; the daemon may go on working.

    Example: steward operator snapshot save monday.snap
    """
    _report(lambda: save(_directory(data_dir), file), f"saved {file}", as_json=as_json)


@snapshot.command(name="inspect")
@_FILE
@_JSON
def inspect_command(file: Path, *, as_json: bool) -> None:
    """Check the snapshot FILE and show what is in it.

    Example: steward operator snapshot inspect monday.snap
    """
    _report(lambda: _inspect(file), f"{file} is sound", as_json=as_json)


@snapshot.command(name="restore")
@_FILE
@_DATA_DIR
@_JSON
def restore_command(file: Path, data_dir: Path | None, *, as_json: bool) -> None:
    """Put the snapshot FILE in the place of the store; the daemon must not be running.

    Example: steward operator snapshot restore monday.snap
    """
    _report(lambda: _restore(file, _directory(data_dir)), f"restored {file}", as_json=as_json)


@snapshot.command(name="drill")
@_FILE
@_JSON
def drill_command(file: Path, *, as_json: bool) -> None:
    """Prove that the snapshot FILE is of use: restore it beside FILE, check all of it, remove it.

    The store and the daemon have no part in it.

    Example: steward operator snapshot drill monday.snap
    """
    _report(
        lambda: _drill(file), f"{file} can be restored, and all in it is sound", as_json=as_json
    )


@operator.command(name="check")
@_DATA_DIR
@_JSON
def check_command(data_dir: Path | None, *, as_json: bool) -> None:
    """Check that the store is sound and everything in it consistent; the daemon may go on working.

    The exit status is 1 when something is wrong.

    Example: steward operator check
    """
    try:
        faults = check(_directory(data_dir))
    except StewardError as error:
        click.echo(f"steward: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(msgspec.json.encode({"Faults": faults}))
        sys.exit(1 if faults else 0)
    for fault in faults:
        click.echo(fault)
    if faults:
        sys.exit(1)
    click.echo("the store is sound")


@operator.command()
@_DATA_DIR
@click.option("--key-file", type=click.Path(path_type=Path), help="File of the present key.")
@click.option("--ask-passphrase", is_flag=True, help="The present key is a passphrase.")
@click.option("--dev", is_flag=True, help="The store is that of a development daemon.")
@click.option(
    "--new-key-file",
    type=click.Path(path_type=Path),
    help="File of the new key; it is made if there is none.",
)
@click.option("--ask-new-passphrase", is_flag=True, help="Ask for a new passphrase.")
def rekey(
    new_key_file: Path | None, *, ask_new_passphrase: bool, **settings: Path | bool | None
) -> None:
    """Seal every secret anew under a new key; the daemon must not be running.

    Unless told otherwise, a new key takes the place of the old one in its file. Snapshots that
    were saved before need the old key.

    Example: steward operator rekey --new-key-file /root/new.key
    """
    from daemon.rekey import replace_key

    given = {name: str(value) for name, value in settings.items() if value}
    try:
        config = load(None, os.environ, given)
        count = replace_key(config, key_file=new_key_file, ask=ask_new_passphrase)
    except* StewardError as group:
        for error in leaves(group):
            click.echo(f"steward: {error}", err=True)
        sys.exit(1)
    click.echo(f"sealed {count} {'secret' if count == 1 else 'secrets'} anew")


def _inspect(file: Path) -> Summary:
    with unpacked(file) as snapshot:
        return inspect(snapshot)


def _restore(file: Path, directory: Path) -> Summary:
    with unpacked(file) as snapshot:
        return restore(snapshot, directory)


def _drill(file: Path) -> Summary:
    try:
        place = TemporaryDirectory(prefix=".drill-", dir=file.absolute().parent)
    except OSError as error:
        raise Refused(f"cannot restore anything beside {file}: {error.strerror}") from error
    with place as directory:
        summary = _restore(file, Path(directory))
        prepare(Path(directory) / FILE_NAME, cluster_id=summary.cluster_id, now=0)
        if faults := check(Path(directory)):
            raise StorageUnusable(f"{file} can be restored, but not all is sound: {faults[0]}")
    return summary


def _directory(given: Path | None) -> Path:
    return find_store(given or load(None, os.environ, {}).data_dir)


def _report(work: Callable[[], Summary], done: str, *, as_json: bool) -> None:
    try:
        summary = work()
    except StewardError as error:
        click.echo(f"steward: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(summary), indent=2))
        return
    click.echo(done)
    for name, value in msgspec.structs.asdict(summary).items():
        click.echo(f"{name.replace('_', ' '):<12} {value}")
