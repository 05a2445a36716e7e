"""`var` and `namespace` against a real daemon."""

import json
import sys
from pathlib import Path

import trio

from tests.service.daemon import Steward


async def ran(steward: Steward, *words: str, stdin: str = "") -> str:
    done = await steward.cli(*words, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def failed(steward: Steward, *words: str, stdin: str = "") -> str:
    done = await steward.cli(*words, stdin=stdin)
    assert done.returncode == 1, done.stdout.decode()
    return done.stderr.decode()


async def items(steward: Steward, path: str) -> dict[str, str]:
    found: dict[str, str] = (await steward.get(f"/v1/var/{path}"))["Items"]
    return found


async def test_put_values_are_added_to_existing_values(steward: Steward, tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_text("from a file")
    await ran(steward, "var", "put", "app/db", "user=me", f"phrase=@{file}")
    await ran(steward, "var", "put", "app/db", "user=you")
    assert await items(steward, "app/db") == {"user": "you", "phrase": "from a file"}
    await ran(steward, "var", "put", "-force", "app/db", "-", stdin='{"only": "this"}')
    assert await items(steward, "app/db") == {"only": "this"}
    assert await ran(steward, "var", "get", "-item", "only", "app/db") == "this\n"
    assert "only = this" in await ran(steward, "var", "get", "app/db")


async def test_put_and_purge_can_expect_an_index(steward: Steward) -> None:
    made = json.loads(await ran(steward, "var", "put", "-json", "-check-index", "0", "a", "k=1"))
    words = await failed(steward, "var", "put", "-check-index", "0", "a", "k=2")
    assert "has changed, or is locked" in words
    assert "k=2" not in words
    assert "has changed" in await failed(steward, "var", "purge", "-check-index", "1", "a")
    await ran(steward, "var", "purge", "-check-index", str(made["ModifyIndex"]), "a")
    assert await ran(steward, "var", "list") == "No variables\n"


async def test_variables_are_listed_by_prefix(steward: Steward) -> None:
    for path in ("app/a", "app/b", "other"):
        await ran(steward, "var", "put", path, "k=hidden")
    shown = await ran(steward, "var", "list", "app/")
    assert [line.split()[1] for line in shown.splitlines()[1:]] == ["app/a", "app/b"]
    assert "hidden" not in shown


async def test_invalid_arguments_for_variables_are_named(steward: Steward) -> None:
    assert "no values" in await failed(steward, "var", "put", "a")
    assert "'k' is not of the form" in await failed(steward, "var", "put", "a", "k")
    assert "cannot read" in await failed(steward, "var", "put", "a", "k=@/nowhere")
    assert "not a JSON object" in await failed(steward, "var", "put", "a", "-", stdin="[1]")
    assert "variable not found" in await failed(steward, "var", "get", "a")
    await ran(steward, "var", "put", "a", "k=v")
    assert "only: k" in await failed(steward, "var", "get", "-item", "x", "a")


async def test_update_keeps_omitted_fields_of_a_namespace(steward: Steward) -> None:
    apply = ("namespace", "apply", "ops")
    await ran(steward, *apply, "-description", "ours", "-enable-driver", "exec")
    await ran(steward, *apply, "-meta", "owner=me")
    found = json.loads(await ran(steward, "namespace", "inspect", "ops"))
    assert (found["Description"], found["Meta"]) == ("ours", {"owner": "me"})
    assert found["Capabilities"]["EnabledTaskDrivers"] == ["exec"]
    shown = await ran(steward, "namespace", "status", "ops")
    assert "Enabled Drivers  = exec" in shown
    assert "owner = me" in shown
    listed = await ran(steward, "namespace", "list")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["default", "ops"]
    await ran(steward, "namespace", "delete", "ops")
    assert "Namespace not found" in await failed(steward, "namespace", "status", "ops")
    assert "not of the form" in await failed(steward, *apply, "-meta", "x")


async def test_a_command_runs_while_the_lock_is_held(steward: Steward) -> None:
    show = f"{sys.executable} -m daemon var get -json app/lock"
    done = await steward.cli("var", "lock", "app/lock", "/bin/sh", "-c", f"{show}; exit 7")
    assert done.returncode == 7
    lock = json.loads(done.stdout)["Lock"]
    assert (lock["TTL"], lock["LockDelay"]) == ("15s", "15s")
    assert "Lock" not in await steward.get("/v1/var/app/lock")


async def test_command_can_wait_for_a_held_lock(steward: Steward, tmp_path: Path) -> None:
    acquire, release = {"lock-acquire": ""}, {"lock-release": ""}
    taken = await steward.post("/v1/var/one", {}, **acquire)
    words = await failed(steward, "var", "lock", "-try", "one", "touch", str(tmp_path / "f"))
    assert 'another client holds the lock of variable "one"' in words
    assert not (tmp_path / "f").exists()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ran, steward, "var", "lock", "one", "touch", str(tmp_path / "f"))
        await steward.post("/v1/var/one", {"Lock": {"ID": taken["Lock"]["ID"]}}, **release)
    assert (tmp_path / "f").exists()


async def test_node_metadata_that_does_not_change_is_reported(steward: Steward) -> None:
    changed = "The metadata of the node was changed\n"
    unchanged = "The metadata of the node already has these values\n"
    assert await ran(steward, "node", "meta", "apply", "rack=r7") == changed
    assert await ran(steward, "node", "meta", "apply", "rack=r7") == unchanged
    assert await ran(steward, "node", "meta", "apply", "-unset", "rack") == changed
    assert await ran(steward, "node", "meta", "apply", "-unset", "rack") == unchanged
