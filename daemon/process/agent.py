"""The `steward agent` command: its options, for the help and for unusual arguments."""

import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "--config", "file", type=click.Path(path_type=Path), help="TOML file with the settings."
)
@click.option(
    "--dev", is_flag=True, default=None, help="Development mode: loopback only, ACLs disabled."
)
@click.option(
    "--dev-cloud",
    is_flag=True,
    default=None,
    help="Start a fake identity provider for login tests.",
)
@click.option("--acl", is_flag=True, default=None, help="Require tokens (with --dev).")
@click.option("--user", help='User that the daemon switches to, or "root" [default: steward].')
@click.option("--data-dir", help="Directory for all data.")
@click.option("--key-file", help="File with the root key that encrypts the stored secrets.")
@click.option(
    "--ask-passphrase",
    is_flag=True,
    default=None,
    help="Prompt for a passphrase instead of a key file.",
)
@click.option("--bind", help="Address to listen on [default: 127.0.0.1].")
@click.option(
    "--allow-plain-text", is_flag=True, default=None, help="Allow plain HTTP beyond loopback."
)
@click.option("--tls-cert", help="File with the daemon's certificate and its chain.")
@click.option("--tls-key", help="File with the certificate's private key.")
@click.option(
    "--tls-client-ca",
    help="File with CA certificates; a client must have a certificate of one of these CAs.",
)
@click.option("--socket", help='Socket for operators on this host, or "none".')
@click.option("--operator-group", help="Group whose members are operators, in addition to root.")
@click.option("--port", help="Port to listen on; 0 for any free port [default: 4646].")
@click.option("--region", help="Name of the region [default: global].")
@click.option("--datacenter", help="Name of the datacenter [default: dc1].")
@click.option("--node-name", help="Name of this node [default: the host's].")
@click.option("--node-class", help="Class of this node, for constraints.")
@click.option("--node-pool", help="Node pool of this node [default: default].")
@click.option(
    "--node-meta", multiple=True, metavar="KEY=VALUE", help="Metadata of this node, as key=value."
)
@click.option("--cpu-total-mhz", help="CPU available to tasks, instead of the detected value.")
@click.option("--memory-total-mb", help="Memory available to tasks, instead of the detected value.")
@click.option("--disk-total-mb", help="Disk available to tasks, instead of the detected value.")
@click.option("--audit-file", help="File that receives a copy of the audit log.")
@click.option("--log-level", help="debug, info, warning or error [default: info].")
@click.option("--log-format", help="text or json [default: text].")
def agent(file: Path | None, node_meta: tuple[str, ...], **flags: object) -> dict[str, object]:
    """Run the daemon in the foreground.

    Settings come from a file, then STEWARD_... variables, then these options. Later sources
    override earlier sources.

    Example: steward agent --dev
    """
    options = {name: value for name, value in flags.items() if value is not None}
    if file is not None:
        options["config"] = str(file)
    return {**options, "node_meta": node_meta} if node_meta else options


def parse_with_click(arguments: list[str]) -> dict[str, object]:
    """Return the values of options. Exit after `--help`, and with status 78 after an error."""
    if any("=" in word for word in arguments):
        # imported late, because few daemons have such an option
        from daemon.cli.core.boolean_options import with_boolean_values

        arguments = with_boolean_values(agent, arguments)
    try:
        options = agent.main(arguments, prog_name="steward agent", standalone_mode=False)
    except click.ClickException as error:
        message = error.format_message()
        link = " See" if message.endswith((".", "?")) else "; see"
        click.echo(f"steward: {message}{link} steward agent --help", err=True)
        sys.exit(78)
    if not isinstance(options, dict):
        sys.exit(0)  # after --help, which has printed the help
    return options
