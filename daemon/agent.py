"""`steward agent`: the settings from the command line, and the daemon."""

import os
import socket
import sys
from functools import partial
from pathlib import Path

import click

from daemon.loading import PREFIX, load, pairs
from storage.errors import StewardError


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), help="TOML file of settings.")
@click.option("--dev", is_flag=True, default=None, help="Development: loopback only, ACLs off.")
@click.option("--dev-cloud", is_flag=True, default=None, help="A small cloud to log in with.")
@click.option("--acl", is_flag=True, default=None, help="Ask for tokens (with --dev).")
@click.option("--data-dir", help="Directory of everything that is kept.")
@click.option("--key-file", help="File of the key around all secrets.")
@click.option("--ask-passphrase", is_flag=True, default=None, help="Ask for a passphrase instead.")
@click.option("--bind", help="Address to listen on [default: 127.0.0.1].")
@click.option("--allow-plain-text", is_flag=True, default=None, help="Beyond loopback, too.")
@click.option("--tls-cert", help="File of the daemon's certificate, with its chain.")
@click.option("--tls-key", help="File of its key.")
@click.option("--tls-client-ca", help="Authorities of whom clients must have a certificate.")
@click.option("--socket", help='Socket for operators of this machine, or "none".')
@click.option("--operator-group", help="Group whose members are operators, besides root.")
@click.option("--port", help="Port to listen on; 0 picks one [default: 4646].")
@click.option("--region", help="Name of the region [default: global].")
@click.option("--datacenter", help="Name of the datacenter [default: dc1].")
@click.option("--node-name", help="Name of this node [default: the host's].")
@click.option("--node-class", help="Class of this node, for constraints.")
@click.option("--node-pool", help="Pool that this node belongs to [default: default].")
@click.option("--node-meta", multiple=True, metavar="KEY=VALUE", help="Meta data of this node.")
@click.option("--cpu-total-mhz", help="CPU to hand out, instead of what was found.")
@click.option("--memory-total-mb", help="Memory to hand out, instead of what was found.")
@click.option("--disk-total-mb", help="Disk to hand out, instead of what was found.")
@click.option("--audit-file", help="File to which the audit is copied.")
@click.option("--log-level", help="debug, info, warning or error [default: info].")
@click.option("--log-format", help="text or json [default: text].")
@click.pass_obj
def agent(
    channel: socket.socket, /, file: Path | None, node_meta: tuple[str, ...], **flags: object
) -> None:
    """Run the daemon in the foreground.

    Settings come from a file, then STEWARD_... variables, then these options; the later win.

    Example: steward agent --dev
    """
    from daemon.main import EXIT_CONFIG, run

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        if node_meta:
            given["node_meta"] = pairs(list(node_meta), "--node-meta")
        file = file or _file_of_environment()
        read = partial(load, file, dict(os.environ), given)
        config = read()
    except StewardError as error:
        click.echo(f"steward: {error}", err=True)
        sys.exit(EXIT_CONFIG)
    sys.exit(run(config, read, channel))


def start(arguments: list[str], channel: socket.socket) -> None:
    """Run the daemon with these arguments; wrong ones end it as wrong settings do.

    `channel` leads to its launcher.
    """
    try:
        agent.main(arguments, prog_name="steward agent", standalone_mode=False, obj=channel)
    except click.ClickException as error:
        click.echo(f"steward: {error.format_message()}; see steward agent --help", err=True)
        sys.exit(78)


def _file_of_environment() -> Path | None:
    name = os.environ.get(f"{PREFIX}CONFIG")
    return Path(name) if name else None
