"""A new root key for a real store, and a daemon that reloads its certificate."""

import os
import signal
from pathlib import Path

from tests.service.daemon import Steward, open_steward


async def rekey(steward: Steward, *words: str) -> str:
    done = await steward.cli("operator", "rekey", "-data-dir", str(steward.data_dir), *words)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_all_secrets_are_readable_with_a_new_root_key(tmp_path: Path) -> None:
    async with open_steward(tmp_path) as steward:
        await steward.post("/v1/var/a", {"Items": {"k": "kept"}})
        keys = await steward.get("/.well-known/jwks.json")
        refused = await steward.cli(
            *("operator", "rekey", "-data-dir", str(steward.data_dir)),
            *("-key-file", str(tmp_path / "root.key")),
        )
        assert b"another daemon" in refused.stderr
        await steward.stop()
        before = (tmp_path / "root.key").read_text()
        assert "encrypted" in await rekey(steward, "-key-file", str(tmp_path / "root.key"))
        assert (tmp_path / "root.key").read_text() != before
        await steward.start()
        assert (await steward.get("/v1/var/a"))["Items"] == {"k": "kept"}
        assert await steward.get("/.well-known/jwks.json") == keys


async def test_development_store_gets_a_new_root_key(steward: Steward) -> None:
    await steward.post("/v1/var/a", {"Items": {"k": "kept"}})
    await steward.stop()
    await rekey(steward, "-dev")
    await steward.start()
    assert (await steward.get("/v1/var/a"))["Items"] == {"k": "kept"}


async def test_a_store_without_its_key_is_not_opened(tmp_path: Path) -> None:
    async with open_steward(tmp_path) as steward:
        await steward.stop()
        (tmp_path / "root.key").write_text("00" * 32)
        refused = await steward.cli("agent", "--dev", "--data-dir", str(steward.data_dir))
        assert refused.returncode == 78
        assert b"put it back" in refused.stderr
        other = await steward.cli(
            *("agent", "--data-dir", str(steward.data_dir)),
            *("--key-file", str(tmp_path / "root.key"), "--port", "0"),
        )
        assert other.returncode == 78
        assert b"was not sealed with" in other.stderr


async def test_hangup_does_not_end_the_daemon(steward: Steward) -> None:
    os.kill(steward.pid, signal.SIGHUP)
    assert await steward.get("/v1/jobs") == []
    assert "reloaded the certificate" in steward.log.read_text()
