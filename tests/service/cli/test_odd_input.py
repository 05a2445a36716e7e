"""The command line with arguments, variables and an input that are not text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts.cli.conftest import FakeDaemon, Told, fake
from tests.service.daemon import environment

__all__ = ["fake"]


def steward(
    *words: bytes | str, address: str, stdin: bytes | None = b"", **variables: str
) -> tuple[int, str]:
    """Return exit status and errors of a command; without `stdin`, that descriptor is closed."""
    command: list[bytes | str] = [sys.executable, "-m", "daemon", *words]
    if stdin is None:
        command = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        check=False,
        env=environment(STEWARD_ADDR=address, **variables),
    )
    return done.returncode, done.stderr.decode(errors="replace")


@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        (("job", "status", b"\xff"), {}, "argument 3 is not valid UTF-8"),
        (("var", "put", "a", b"k=secret\xff"), {}, "argument 4 is not valid UTF-8"),
        (
            ("job", "status"),
            {"STEWARD_NAMESPACE": os.fsdecode(b"\xff")},
            "the environment variable STEWARD_NAMESPACE is not valid UTF-8",
        ),
        (
            ("operator", "api", "http://[::1/v1"),
            {},
            "Invalid IPv6 URL; write a path such as /v1/jobs",
        ),
    ],
)
def test_text_that_is_no_utf8_is_named_and_not_shown(
    fake: FakeDaemon, words: tuple[bytes | str, ...], variables: dict[str, str], told: str
) -> None:
    status, errors = steward(*words, address=fake.address, **variables)
    assert status == 1
    assert told in errors
    assert errors.count("\n") == 1
    assert "secret" not in errors


@pytest.mark.parametrize("stdin", [None, b"\xff\xfe"])
def test_an_input_that_is_closed_or_no_text_is_an_error(
    fake: FakeDaemon, stdin: bytes | None
) -> None:
    for words in (("run", "-"), ("acl", "policy", "apply", "p", "-")):
        status, errors = steward(*words, address=fake.address, stdin=stdin)
        assert status == 1
        assert "Traceback" not in errors
        assert errors.startswith("steward: ")


def test_a_bundle_leaves_out_what_is_not_json_and_refuses_a_wrong_duration(
    fake: FakeDaemon, tmp_path: Path
) -> None:
    fake.tell("/v1/jobs", Told(b'{"ID":'))
    target = str(tmp_path / "a.tar.gz")
    fake.tell("/v1/agent/monitor", Told(b"invalid duration", 400))
    debug = ("operator", "debug", "-output", target, "-duration")
    assert steward(*debug, "abc", address=fake.address) == (1, "steward: invalid duration\n")
    fake.tell("/v1/agent/monitor", Told(pieces=(b"line\n",)))
    assert steward(*debug, "1s", address=fake.address)[0] == 0
