"""Job files are parsed concurrently with other requests."""

import trio

from tests.service.daemon import Steward

LOOPS = "[for a in range(1000) : [for b in range(1000) : convert(range(1000), set(string))]]"
FILE = f'job "x" {{\n  meta {{\n    a = {LOOPS}\n  }}\n}}\n'


async def test_costly_short_file_delays_no_other_client(steward: Steward) -> None:
    await steward.post("/v1/jobs/parse", {"JobHCL": 'job "warm" {}\n'})
    refused = trio.Event()

    async def parse() -> None:
        answer = await steward.request("POST", "/v1/jobs/parse", {"JobHCL": FILE})
        assert "Too much work" in answer.text
        refused.set()

    served = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parse)
        while not refused.is_set():
            await steward.get("/v1/agent/health")
            served += 1
    assert served > 5
