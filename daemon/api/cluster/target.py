"""The node or server that a request names: only this daemon exists."""

from daemon.web.request import Request
from storage.errors import Malformed, NotFound
from storage.queries import installation


def check_here(request: Request) -> None:
    """Raise `Malformed` or `NotFound` if the query names another node or server."""
    parts, query = request.parts, request.query
    node, server = query.text("node_id"), query.text("server_id")
    if node and server:
        raise Malformed("Cannot target node and server simultaneously")
    config = parts.config
    own_names = {parts.store.read(installation.cluster_id), f"{config.node_name}.{config.region}"}
    if server and server not in own_names | {"leader", config.node_name}:
        raise NotFound(f'server_id = "{server}" is not known')
    if node and node != parts.tasks.node_id:
        raise NotFound(f'node_id = "{node}" is not known')
