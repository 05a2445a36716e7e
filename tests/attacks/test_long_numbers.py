"""Numbers with thousands of digits in a query: Python refuses to convert more than 4,300."""

import pytest

from daemon.acl.check import KNOWN
from daemon.api import vault_reads
from daemon.api.cluster import events
from daemon.text.request_fields import RequestFields
from daemon.web.request import Operation, RouteCall
from storage.errors import Malformed
from storage.store import Store
from tests.parts.api.requests import caller, request

DIGITS = "9" * 5000


async def test_index_of_an_event_stream_is_bounded(store: Store) -> None:
    asked = request(store, KNOWN, caller(), query=f"index={DIGITS}")
    with pytest.raises(
        Malformed, match=r"parsing \"9+\.\.\. \(5000 digits\)\": value out of range"
    ):
        await events.stream(asked)


async def test_limit_of_a_list_of_the_vault_api_is_bounded(store: Store) -> None:
    asked = request(store, KNOWN, caller(), query=f"limit={DIGITS}")
    call = RouteCall(
        **{name: getattr(asked, name) for name in asked.__struct_fields__},
        operation=Operation.LIST,
        fields=RequestFields({}),
    )
    with pytest.raises(Malformed, match="5000 digits"):
        vault_reads.span(call)
