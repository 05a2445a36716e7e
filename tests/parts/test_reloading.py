"""What a running daemon takes from its settings anew, and what it leaves as it is."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from daemon.acl.failures import Failures, LockOut
from daemon.config import Config
from daemon.jobspec.policies import Policies
from daemon.loading import load
from daemon.logs import Monitor
from daemon.parts import Parts
from daemon.reloading import Reloading
from daemon.web.connections import Listeners, open_wrapper_listeners
from storage.errors import Denied
from storage.records.base import SECOND
from tests.fakes.authority import Authority
from tests.samples import job

POLICY = """
[[job_policies]]
name = "no web"
rule = 'ID != "web"'
level = "hard-mandatory"
"""


class Daemon:
    """The parts that are concerned, and the file that is read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.write_text("")
        self.policies, self.failures = Policies(), Failures()
        found = SimpleNamespace(
            policies=self.policies,
            tokens=SimpleNamespace(failures=self.failures),
            monitor=Monitor(),
        )
        self.parts = cast("Parts", found)
        self.reload = Reloading(self._read(), self._read, Listeners(port=0, places=()), self.parts)

    def _read(self) -> Config:
        return load(self.file, {}, {"data_dir": str(self.file.parent)})

    def reads(self, text: str) -> None:
        self.file.write_text(text)
        self.reload()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    root, own = logging.getLogger(), logging.getLogger("steward")
    before = [(one, one.level) for one in (own, *root.handlers)]
    yield Daemon(tmp_path / "steward.toml")
    for one, level in before:
        one.setLevel(level)


def test_policies_limits_and_the_level_of_the_log_are_taken_over(daemon: Daemon) -> None:
    daemon.reads(f'log_level = "error"\nlockout_threshold = 3\nlockout_seconds = 60\n{POLICY}')
    assert daemon.failures.lock_out == LockOut(3, 60 * SECOND)
    assert logging.getLogger("steward").level == logging.ERROR
    with pytest.raises(Denied, match="no web"):
        daemon.policies.check(job("web"), override=True)
    daemon.reads("")
    assert daemon.policies.check(job("web"), override=True) == []


@pytest.mark.parametrize(
    "wrong",
    ["log_level = 7", "lockout_threshold = -1", "[[job_policies]]\nname = 'x'\nrule = '(('", "]"],
)
def test_what_is_wrong_changes_nothing_and_is_said(
    daemon: Daemon, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.reads("lockout_threshold = 3")
    daemon.reads(f"lockout_threshold = 4\n{wrong}")
    assert daemon.failures.lock_out.threshold == 3
    assert "the old settings stay" in caplog.text


def test_it_is_said_what_only_a_restart_changes(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.reads('region = "other"\ntls_cert = "/c"\ntls_key = "/k"\nlockout_threshold = 5')
    assert "change with a restart of the daemon: region, tls_cert, tls_key" in caplog.text
    assert daemon.failures.lock_out.threshold == 5


async def test_the_certificate_of_wrappers_is_read_anew(
    daemon: Daemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = Authority(tmp_path).certify("daemon")
    config = Config(
        wrapper_bind="127.0.0.1", wrapper_port=0, wrapper_tls_cert=certificate, wrapper_tls_key=key
    )
    with open_wrapper_listeners(config) as wrappers:
        reload = Reloading(
            config, lambda: config, Listeners(port=0, places=()), daemon.parts, wrappers
        )
        reload()
        assert "the old settings stay" not in caplog.text
        key.write_text("nonsense")
        reload()
    assert "the old settings stay: cannot use the certificate" in caplog.text
