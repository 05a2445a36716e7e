"""A damaged row of one login method does not hide the others."""

import sqlite3
from contextlib import closing

from storage.check import check
from storage.store import FILE_NAME
from tests.service.daemon import Steward


async def test_method_is_read_and_tuned_despite_a_damaged_one(steward: Steward) -> None:
    for name in ("one", "two"):
        made = await steward.request("POST", f"/v1/sys/auth/{name}", {"type": "azure"})
        assert made.status_code == 204
    (file,) = steward.data_dir.rglob(FILE_NAME)
    with closing(sqlite3.connect(file)) as other, other:
        (before,) = other.execute("SELECT document FROM mounts WHERE path = 'one/'").fetchone()
        other.execute("UPDATE mounts SET document = '{' WHERE path = 'one/'")
    shown = (await steward.request("GET", "/v1/sys/auth/two")).json()
    assert shown["type"] == "azure"
    tuned = await steward.request("POST", "/v1/sys/auth/two/tune", {"description": "kept"})
    assert tuned.status_code == 204
    assert (await steward.request("GET", "/v1/sys/auth/two")).json()["description"] == "kept"
    found = check(file.parent)
    assert len(found) == 1
    assert "the row one/ of the table mounts cannot be read" in found[0]
    with closing(sqlite3.connect(file)) as other, other:  # repairs the row for the check at the end
        other.execute("UPDATE mounts SET document = ? WHERE path = 'one/'", (before,))
