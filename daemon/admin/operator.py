"""The `steward operator` commands: snapshots, checks, a new root key, and the audit log."""

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec

from daemon.cli.commands.api_call import call_api, show_metrics
from daemon.cli.commands.audit import audit
from daemon.cli.commands.confinement import confinement
from daemon.cli.commands.debug import debug
from daemon.cli.commands.fault import fault
from daemon.cli.core.command_groups import CommandGroup
from daemon.config.data_directory import find_store
from daemon.config.loading import load_settings
from daemon.process.run_as_owner import as_user, owner_of
from daemon.process.service_account import ROOT, ServiceAccount, usual_account
from daemon.text.control_characters import visible, visible_lines
from storage.check import check
from storage.errors import Invalid, Refused, StewardError, StorageUnusable, leaf_errors
from storage.schema import prepare
from storage.snapshot import SnapshotSummary, inspect, restore, save
from storage.snapshot_archive import unpacked
from storage.store import FILE_NAME

_FILE = click.argument("file", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
_DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Directory of the store [default: the directory that `steward agent` uses].",
)


@click.group(cls=CommandGroup)
def operator() -> None:
    """Maintain the daemon and its store."""


operator.add_command(audit)
operator.add_command(call_api)
operator.add_command(confinement)
operator.add_command(debug)
operator.add_command(fault)
operator.add_command(show_metrics)


@operator.group(cls=CommandGroup)
def snapshot() -> None:
    """Save, check and restore the whole store."""


@snapshot.command(name="save")
@_FILE
@_DATA_DIR
@_JSON
def save_command(file: Path, data_dir: Path | None, *, as_json: bool) -> None:
    """Write a snapshot of the store to FILE; the daemon may be running.

    Example: steward operator snapshot save monday.snap
    """
    if file == Path("-"):
        raise Invalid("FILE cannot be -: the command checks the file after writing; name a file")
    _report(lambda: _save(_directory(data_dir), file), f"saved {file}", as_json=as_json)


@snapshot.command(name="inspect")
@_FILE
@_JSON
def inspect_command(file: Path, *, as_json: bool) -> None:
    """Check the snapshot FILE and show its contents.

    Example: steward operator snapshot inspect monday.snap
    """
    _report(lambda: _inspect(file), f"{file} is intact", as_json=as_json)


@snapshot.command(name="restore")
@_FILE
@_DATA_DIR
@_JSON
def restore_command(file: Path, data_dir: Path | None, *, as_json: bool) -> None:
    """Replace the store with the snapshot FILE; the daemon must not be running.

    Example: steward operator snapshot restore monday.snap
    """
    _report(lambda: _restore(file, _directory(data_dir)), f"restored {file}", as_json=as_json)


@snapshot.command(name="drill")
@_FILE
@_JSON
def restore_drill_command(file: Path, *, as_json: bool) -> None:
    """Test the snapshot FILE: restore it next to FILE, check all of it, and delete the copy.

    The store and the daemon are not involved.

    Example: steward operator snapshot drill monday.snap
    """
    _report(
        lambda: _restore_into_scratch(file),
        f"{file} can be restored, and its contents are intact",
        as_json=as_json,
    )


@operator.command(name="check")
@_DATA_DIR
@_JSON
def check_command(data_dir: Path | None, *, as_json: bool) -> None:
    """Check that the store is intact and consistent; the daemon may be running.

    The exit status is 1 if there is a fault.

    Example: steward operator check
    """
    try:
        directory = _directory(data_dir)
        faults = as_user(owner_of(directory), lambda: check(directory), list[str])
    except StewardError as error:
        click.echo(f"steward: {visible_lines(str(error))}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(msgspec.json.encode({"Faults": faults}))
        sys.exit(1 if faults else 0)
    for fault_text in faults:
        click.echo(visible(fault_text))
    if faults:
        sys.exit(1)
    click.echo("the store is intact")


@operator.command()
@_DATA_DIR
@click.option("--key-file", type=click.Path(path_type=Path), help="File with the current root key.")
@click.option("--ask-passphrase", is_flag=True, help="The current root key is a passphrase.")
@click.option("--dev", is_flag=True, help="The store belongs to a development daemon.")
@click.option(
    "--new-key-file",
    type=click.Path(path_type=Path),
    help="File for the new key; it is created if it does not exist.",
)
@click.option("--ask-new-passphrase", is_flag=True, help="Prompt for a new passphrase.")
def rekey(
    new_key_file: Path | None, *, ask_new_passphrase: bool, **settings: Path | bool | None
) -> None:
    """Encrypt every secret again with a new root key; the daemon must not be running.

    By default, a new key replaces the old one in its file. Earlier snapshots still need the old
    key.

    Example: steward operator rekey --new-key-file /root/new.key
    """
    from daemon.admin.rekey import replace_key

    named = {name: str(value) for name, value in settings.items() if value}
    try:
        config = load_settings(None, os.environ, named)
        count = replace_key(config, key_file=new_key_file, ask=ask_new_passphrase)
    except* StewardError as group:
        for error in leaf_errors(group):
            click.echo(f"steward: {visible_lines(str(error))}", err=True)
        sys.exit(1)
    click.echo(f"encrypted {count} {'secret' if count == 1 else 'secrets'} with the new key")


def _save(directory: Path, file: Path) -> SnapshotSummary:
    """Save a snapshot to a new file. The caller creates the file; the store's owner fills it."""
    owner = owner_of(directory)
    if owner is None:
        return save(directory, file)
    try:
        target = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise Refused(f"{file} exists already: name another file") from None
    except OSError as error:
        raise Refused(f"cannot write {file}: {error.strerror}") from error
    try:
        return as_user(owner, lambda: _save_to(directory, target), SnapshotSummary)
    except BaseException:  # an interrupt also leaves no partial file
        file.unlink(missing_ok=True)
        raise
    finally:
        os.close(target)


def _save_to(directory: Path, target: int) -> SnapshotSummary:
    with TemporaryDirectory(prefix=".saved-", dir=directory) as staging:
        draft = Path(staging) / FILE_NAME
        summary = save(directory, draft)
        with draft.open("rb") as source, os.fdopen(os.dup(target), "wb") as written:
            shutil.copyfileobj(source, written)
            written.flush()
            os.fsync(target)
    return summary


def _inspect(file: Path) -> SnapshotSummary:
    def work() -> SnapshotSummary:
        with unpacked(file) as snapshot:
            return inspect(snapshot)

    reader = _reader()
    if reader is None:
        return work()
    home = _directory(None)
    with (
        _opened(file) as source,
        _scratch_directory(home if home.is_dir() else None, reader) as staging,
    ):
        return as_user(reader, lambda: _with_copy(source, file, staging, inspect), SnapshotSummary)


def _restore(file: Path, directory: Path) -> SnapshotSummary:
    owner = owner_of(directory)
    if owner is None and os.geteuid() == ROOT and not directory.exists():
        owner = _new_home(directory)
    if owner is None:
        with unpacked(file) as snapshot:
            return restore(snapshot, directory)
    with _opened(file) as source:
        return as_user(
            owner,
            lambda: _with_copy(
                source, file, directory, lambda directory_copy: restore(directory_copy, directory)
            ),
            SnapshotSummary,
        )


def _new_home(directory: Path) -> ServiceAccount | None:
    """Create the store's directory for the package's service account, and return the account.

    Return None, and create nothing, if the host has no such account.
    """
    account = usual_account()
    if account is not None:
        directory.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        os.chown(directory, account.uid, account.gid)
    return account


def _restore_into_scratch(file: Path) -> SnapshotSummary:
    reader = _reader()
    with _scratch_directory(file.absolute().parent, reader) as staging, _opened(file) as source:

        def work(snapshot: Path) -> SnapshotSummary:
            home = staging / "restored"
            summary = restore(snapshot, home)
            prepare(home / FILE_NAME, cluster_id=summary.cluster_id, now=0)
            if faults := check(home):
                raise StorageUnusable(
                    f"{file} can be restored, but its contents have faults: {faults[0]}"
                )
            return summary

        return as_user(reader, lambda: _with_copy(source, file, staging, work), SnapshotSummary)


def _reader() -> ServiceAccount | None:
    """Return the account as which a command that root runs reads a snapshot.

    It is the store's owner, or else the service account. Return None if another user runs the
    command.
    """
    if os.geteuid() != ROOT:
        return None
    return owner_of(_directory(None)) or usual_account()


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    """Open a regular file for reading, and yield its descriptor. Raises `StorageUnusable`."""
    try:
        source = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StorageUnusable(f"there is no file {file}") from None
    except OSError as error:
        raise StorageUnusable(f"cannot read {file}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise StorageUnusable(f"there is no file {file}")
        yield source
    finally:
        os.close(source)


@contextmanager
def _scratch_directory(home: Path | None, account: ServiceAccount | None) -> Iterator[Path]:
    """Yield the path of a temporary directory that the account can write to.

    The path works even if the account cannot enter the parent directories. Raises `Refused`.
    """
    try:
        temporary = TemporaryDirectory(prefix=".drill-", dir=home)
    except OSError as error:
        raise Refused(f"cannot restore anything in {home}: {error.strerror}") from error
    with temporary as directory:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if account is not None:
                os.fchown(opened, account.uid, account.gid)
            yield Path(f"/proc/self/fd/{opened}")
        finally:
            os.close(opened)


def _with_copy(
    source: int, name: Path, directory: Path, work: Callable[[Path], SnapshotSummary]
) -> SnapshotSummary:
    """Call `work` with a copy of the snapshot in the daemon's own directory; return the result.

    Errors have the name of the original file.
    """
    with TemporaryDirectory(prefix=".given-", dir=directory) as staging:
        copy = Path(staging) / "snapshot"
        with os.fdopen(os.dup(source), "rb") as content, copy.open("xb") as file:
            shutil.copyfileobj(content, file)
        try:
            with unpacked(copy) as snapshot:
                return work(snapshot)
        except StorageUnusable as error:
            raise StorageUnusable(str(error).replace(str(copy), str(name))) from error


def _directory(directory: Path | None) -> Path:
    return find_store(directory or load_settings(None, os.environ, {}).data_dir)


def _report(work: Callable[[], SnapshotSummary], done: str, *, as_json: bool) -> None:
    try:
        summary = work()
    except StewardError as error:
        click.echo(f"steward: {visible_lines(str(error))}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(summary), indent=2))
        return
    click.echo(done)
    for name, value in msgspec.structs.asdict(summary).items():
        click.echo(f"{name.replace('_', ' '):<12} {visible(str(value))}")
