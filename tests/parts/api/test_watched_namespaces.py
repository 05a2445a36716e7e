"""The topics that a blocking query watches."""

import pytest

from daemon.api.routes import READ
from daemon.web.blocking import _topics
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute, Request
from storage.read_pool import ReadSnapshot
from storage.store import Store
from tests.parts.api.requests import caller, request


def shown(request: Request, db: ReadSnapshot) -> HandlerReply:
    return HandlerReply()


@pytest.mark.parametrize(
    ("query", "topics"),
    [
        ("namespace=ops&prefix=we", ["jobs/ops/we", "nodes/one", "acl"]),
        ("namespace=*&prefix=we", ["jobs/*", "nodes/one", "acl"]),
    ],
)
async def test_read_of_all_namespaces_watches_the_topics_of_each(
    store: Store, query: str, topics: list[str]
) -> None:
    watch = ("jobs/{namespace}/{prefix}", "nodes/{node}", "acl")
    route = ReadRoute("/v1/x", shown, READ, watch=watch)
    asked = request(
        store, READ, caller('namespace "*" { policy = "read" }'), query=query, node="one"
    )
    assert _topics(route, asked) == topics
