"""A page of another site makes the browser of a user send requests.

Such a request has no token. So it has an effect only on a daemon without access control, or with
permissions for anonymous callers.
"""

from pathlib import Path

import pytest
import trio

from daemon.api.routes import ROUTES
from daemon.config.data_directory import alloc_dir
from daemon.web.request import StreamRoute
from tests.service.daemon import open_steward

JOB = {
    "ID": "done",
    "Type": "batch",
    "TaskGroups": [
        {
            "Name": "g",
            "Tasks": [{"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}],
        }
    ],
}
ACTING = [route.path for route in ROUTES if isinstance(route, StreamRoute) and route.acts]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_read_with_an_effect_is_refused_for_pages_of_other_sites(
    tmp_path: Path, site: str
) -> None:
    async with open_steward(tmp_path, "--dev") as steward:
        await steward.register(JOB)
        (ended,) = await steward.allocations("done", "complete")
        directory = alloc_dir(steward.data_dir) / ended["ID"]
        for method, path in [(method, path) for method in ("GET", "HEAD") for path in ACTING]:
            answer = await steward._http.request(
                method,
                f"{steward.address}{path.format(alloc_id=ended['ID'])}",
                headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"},
            )
            assert answer.status_code in (403, 405), f"{method} {path}"
        assert directory.is_dir()
        # Programs do not send this header. For an address that the user enters, a browser sends
        # `none`.
        answer = await steward._http.get(
            f"{steward.address}/v1/client/gc", headers={"Sec-Fetch-Site": "none"}
        )
        assert answer.is_success
        with trio.fail_after(20):
            while directory.exists():
                await trio.lowlevel.checkpoint()
