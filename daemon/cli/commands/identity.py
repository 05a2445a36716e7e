"""`identity export`: the issuer's public documents, for static hosting."""

from pathlib import Path

import click
import msgspec

from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import with_output, with_vault_client
from daemon.cli.core.output import Screen
from storage.errors import Invalid

_PLUGINS = "/v1/identity/oidc/plugins/.well-known"
_DOCUMENTS = {"openid-configuration": "issuer", "keys": "keys"}  # document -> a required field


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@with_output
@with_vault_client
def export(client: ApiClient, screen: Screen, directory: Path) -> None:
    """Write the public documents of the daemon's own issuer below DIRECTORY.

    Serve DIRECTORY as application/json at the address that `identity/oidc/config` names. Repeat the
    export at least once a day: new keys are published a day before they sign.

    Example: steward identity export /var/www/html
    """
    written: list[str] = []
    for name, needed in _DOCUMENTS.items():
        target = directory / _PLUGINS.strip("/") / name
        body = client.read(f"{_PLUGINS}/{name}").object_body(needed)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f".{name}.new")
            beside.write_bytes(body)
            beside.replace(target)
        except OSError as error:
            raise Invalid(f"cannot write {target}: {error.strerror}") from error
        written.append(str(target))
    if screen.wants_document:
        screen.document(msgspec.json.encode(written))
        return
    for line in written:
        screen.line(line)
