"""The fingerprints of drivers that run local processes."""

from types import SimpleNamespace
from typing import cast

from daemon.launcher.client import Launcher
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver


def driver(trouble: str = "", *, enabled: bool = True) -> RawExecDriver:
    """Return a driver whose launcher reports this trouble with its tools."""
    launcher = cast(Launcher, SimpleNamespace(walls=SimpleNamespace(tools=trouble)))
    return RawExecDriver(ProcessScanner(), {}, launcher, enabled=enabled)


def test_driver_without_its_tools_has_a_reason() -> None:
    found = driver("bwrap is missing").fingerprint()
    assert (found.trouble, found.attributes) == ("bwrap is missing", {})


def test_disabled_driver_has_a_reason() -> None:
    found = driver(enabled=False).fingerprint()
    assert found.trouble.startswith("raw_exec is off: set raw_exec = true")
    assert found.attributes == {}


def test_enabled_driver_has_its_attributes() -> None:
    found = driver().fingerprint()
    assert found.trouble == ""
    assert found.attributes["driver.raw_exec"] == "true"
    assert all(name.startswith("driver.raw_exec") for name in found.attributes)
