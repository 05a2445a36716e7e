"""The address and the CA certificates that wrappers use."""

from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import Settings
from daemon.runner.drivers.slurm.backend import _address, _authority
from storage.errors import Invalid


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"bind": "192.0.2.1"}, "http://192.0.2.1:4648"),
        ({"bind": "192.0.2.1", "wrapper_bind": "192.0.2.2"}, "http://192.0.2.2:4648"),
        ({"wrapper_bind": "2001:db8::1"}, "http://[2001:db8::1]:4648"),
        ({"wrapper_bind": "h", "tls_cert": Path("/c")}, "https://h:4648"),
        ({"wrapper_bind": "h", "wrapper_tls_cert": Path("/c")}, "https://h:4648"),
        ({"wrapper_url": "https://proxy.example/steward/"}, "https://proxy.example/steward"),
    ],
)
def test_wrappers_connect_to_the_listener_unless_an_address_is_set(
    fields: dict[str, Any], address: str
) -> None:
    assert _address(Settings(**fields), 4648) == address


def test_wrappers_use_the_certificates_of_their_host_by_default(tmp_path: Path) -> None:
    assert _authority(Settings()) == ""
    (tmp_path / "ca.pem").write_text("a certificate\n")
    assert _authority(Settings(wrapper_ca=tmp_path / "ca.pem")) == "a certificate"


@pytest.mark.parametrize("content", [None, b"\xff", b"x" * 70_000])
def test_unusable_file_of_certificates_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(Invalid, match="wrapper_ca = "):
        _authority(Settings(wrapper_ca=tmp_path / "ca.pem"))
