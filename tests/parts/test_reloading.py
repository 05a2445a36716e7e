"""Settings that a running daemon reloads, and settings that it does not."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from daemon.acl.lockout import FailedLogins, LockoutPolicy
from daemon.app.context import AppContext
from daemon.config.loading import load_settings
from daemon.config.settings import Settings
from daemon.jobspec.policies import JobPolicySet
from daemon.launcher.channel import sealed
from daemon.log.daemon_log import LogMonitor
from daemon.process import main
from daemon.process.reload import SettingsReloader
from daemon.web.connections import ConnectionListeners
from storage.errors import Denied
from storage.records.base import SECOND
from tests.fakes.authority import Authority
from tests.listeners import open_wrapper_listeners
from tests.samples import job
from tests.time_limits import HAPPENS_WITHIN

POLICY = """
[[job_policies]]
name = "no web"
rule = 'ID != "web"'
level = "hard-mandatory"
"""


async def nobody_reads(path: str) -> int:
    raise PermissionError(path)


class Daemon:
    """The parts that a reload concerns, and the file that it reads."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.write_text("")
        self.policies, self.failures = JobPolicySet(), FailedLogins()
        found = SimpleNamespace(
            policies=self.policies,
            tokens=SimpleNamespace(failures=self.failures),
            monitor=LogMonitor(),
        )
        self.parts = cast("AppContext", found)
        nowhere = ConnectionListeners(port=0, places=())
        self.reload = SettingsReloader(self._read(), self._read, nowhere, self.parts, nobody_reads)

    def _read(self) -> Settings:
        return load_settings(self.file, {}, {"data_dir": str(self.file.parent)})

    def reads(self, text: str) -> None:
        self.file.write_text(text)
        trio.run(self.reload)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    root, own = logging.getLogger(), logging.getLogger("steward")
    before = [(handler, handler.level) for handler in (own, *root.handlers)]
    yield Daemon(tmp_path / "steward.toml")
    for one, level in before:
        one.setLevel(level)


def test_policies_limits_and_the_log_level_are_reloaded(daemon: Daemon) -> None:
    daemon.reads(f'log_level = "error"\nlockout_threshold = 3\nlockout_seconds = 60\n{POLICY}')
    assert daemon.failures.lock_out == LockoutPolicy(3, 60 * SECOND)
    assert logging.getLogger("steward").level == logging.ERROR
    with pytest.raises(Denied, match="no web"):
        daemon.policies.check(job("web"), override=True)
    daemon.reads("")
    assert daemon.policies.check(job("web"), override=True) == []


@pytest.mark.parametrize(
    "wrong",
    ["log_level = 7", "lockout_threshold = -1", "[[job_policies]]\nname = 'x'\nrule = '(('", "]"],
)
def test_invalid_settings_change_nothing_on_reload(
    daemon: Daemon, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.reads("lockout_threshold = 3")
    daemon.reads(f"lockout_threshold = 4\n{wrong}")
    assert daemon.failures.lock_out.threshold == 3
    assert "the settings are unchanged" in caplog.text


def test_settings_that_need_a_restart_are_reported(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.reads('region = "other"\ntls_cert = "/c"\ntls_key = "/k"\nlockout_threshold = 5')
    assert "change only with a restart of the daemon: region, tls_cert, tls_key" in caplog.text
    assert daemon.failures.lock_out.threshold == 5


async def test_the_certificate_of_wrappers_is_read_again(
    daemon: Daemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = Authority(tmp_path).certify("daemon")
    config = Settings(
        wrapper_bind="127.0.0.1", wrapper_port=0, wrapper_tls_cert=certificate, wrapper_tls_key=key
    )
    with open_wrapper_listeners(config) as wrappers:
        reload = SettingsReloader(
            config,
            lambda: config,
            ConnectionListeners(port=0, places=()),
            daemon.parts,
            nobody_reads,
            wrappers,
        )
        await reload()
        assert "the settings are unchanged" not in caplog.text
        key.write_text("nonsense")
        await reload()
    assert "the settings are unchanged: cannot use the certificate" in caplog.text


async def test_certificate_readable_only_by_root_is_read_by_the_launcher(
    daemon: Daemon,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test fills the key file with nonsense, because the daemon must not read it directly."""
    certificate, key = Authority(tmp_path).certify("daemon")
    config = Settings(
        wrapper_bind="127.0.0.1", wrapper_port=0, wrapper_tls_cert=certificate, wrapper_tls_key=key
    )
    asked: list[str] = []
    content = key.read_bytes()

    async def read_own(path: str) -> int:
        asked.append(path)
        return sealed(content)

    with open_wrapper_listeners(config) as wrappers:
        key.write_text("nonsense")
        monkeypatch.setattr(os, "access", lambda path, _: path != key)
        nowhere = ConnectionListeners(port=0, places=())
        await SettingsReloader(config, lambda: config, nowhere, daemon.parts, read_own, wrappers)()
    assert asked == [str(key)]
    assert "the settings are unchanged" not in caplog.text
    assert "reloaded the certificate" in caplog.text


async def test_failed_import_of_the_reload_does_not_stop_the_daemon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "daemon.process.reload", cast("Any", None))
    send, told = trio.open_memory_channel[str](9)
    manager: Any = SimpleNamespace(reloading=lambda: None, ready=send.send_nowait)
    parts: Any = SimpleNamespace(config=SimpleNamespace(address="http://here"))
    async with trio.open_nursery() as nursery:
        await nursery.start(main._reload_on_hangup, parts, manager)
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
            with trio.fail_after(HAPPENS_WITHIN):
                assert await told.receive() == "answers at http://here"
        nursery.cancel_scope.cancel()
    assert "the settings are unchanged, because they cannot be reloaded" in caplog.text
