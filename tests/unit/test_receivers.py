"""Receivers in the configuration: refused with the field, its value and the fix."""

from pathlib import Path

import pytest

from daemon.config.loading import load_settings
from daemon.config.notify_receivers import faults_of_receivers, topic_of
from daemon.config.settings import Settings
from daemon.process.self_confinement import readable
from storage.errors import Invalid
from storage.records.notification import Encryption, Receiver, ReceiverKind


def email(**fields: object) -> Receiver:
    usual = {"server": "smtp.example.com:587", "sender": "a@example.com", "to": ["b@example.com"]}
    return Receiver(kind=ReceiverKind.EMAIL, **{**usual, **fields})


def of(kind: ReceiverKind, **fields: object) -> Receiver:
    return Receiver(kind=kind, **fields)


GOOD = [
    email(),
    email(user="steward", secret_file="/etc/steward/smtp", tls=Encryption.TLS),
    email(server="127.0.0.1:25", tls=Encryption.NONE, user="x", secret_env="P"),
    email(server="[::1]:25"),
    of(ReceiverKind.SLACK, secret_env="SLACK_URL"),
    of(ReceiverKind.NTFY, url="https://ntfy.sh/topic"),
    of(ReceiverKind.NTFY, url="http://127.0.0.1:80/sub/topic", secret_file="/t"),
    of(ReceiverKind.ALERTMANAGER, url="http://127.0.0.1:9093/prefix"),
    of(ReceiverKind.WEBHOOK, url="https://h.example/x?y=z", secret_file="/s", group_seconds=0),
]


@pytest.mark.parametrize("receiver", GOOD)
def test_valid_receiver_has_no_error(receiver: Receiver) -> None:
    assert list(faults_of_receivers({"night": receiver}, {"mail"})) == []


@pytest.mark.parametrize(
    ("receiver", "said"),
    [
        (of(ReceiverKind.SLACK), 'kind = "slack" needs secret_file or secret_env'),
        (of(ReceiverKind.EMAIL), 'kind = "email" needs from and server and to'),
        (
            of(ReceiverKind.SLACK, url="https://x.example", secret_env="X"),
            'kind = "slack" does not use url; remove it',
        ),
        (
            of(ReceiverKind.NTFY, url="https://ntfy.sh/t", user="x", sender="y"),
            'kind = "ntfy" does not use from and user; remove it',
        ),
        (
            of(ReceiverKind.NTFY, url="https://ntfy.sh/"),
            "url = 'https://ntfy.sh/': write https://HOST/TOPIC; a topic has at most 64 letters, "
            "digits, - and _",
        ),
        (
            of(ReceiverKind.WEBHOOK, url="ftp://x", secret_env="X"),
            "url = 'ftp://x': must be an address like https://HOST/PATH",
        ),
        (
            of(ReceiverKind.ALERTMANAGER, url="http://x/?a"),
            "url = 'http://x/?a': write it without a query, such as http://HOST:9093",
        ),
        (
            email(server="smtp.example.com"),
            "server = 'smtp.example.com': write HOST:PORT, such as smtp.example.com:587",
        ),
        (
            email(server="smtp.example.com:0"),
            "server = 'smtp.example.com:0': write HOST:PORT, such as smtp.example.com:587",
        ),
        (
            email(to=["b@example.com\r\nBcc: x@example.com"]),
            "to: 'b@example.com\\r\\nBcc: x@example.com' is not a plain address such as "
            "ops@example.com",
        ),
        (
            email(sender="Ops <a@example.com>"),
            "from: 'Ops <a@example.com>' is not a plain address such as ops@example.com",
        ),
        (
            email(user="x"),
            "user and a password (secret_file or secret_env) belong together: set both, or neither",
        ),
        (
            email(user="x", secret_env="P", tls=Encryption.NONE),
            'tls = "none": others could read the password on its way to smtp.example.com; use '
            "starttls or tls",
        ),
        (
            email(user="x", secret_env="P", secret_file="/p"),
            "give secret_file or secret_env, not both",
        ),
        (
            email(user="x", secret_file="p"),
            "secret_file = 'p': write the absolute path",
        ),
        (email(group_seconds=-1), "group_seconds = -1: write a number from 0 to 3600"),
    ],
)
def test_error_names_the_field_and_a_fix(receiver: Receiver, said: str) -> None:
    assert list(faults_of_receivers({"night": receiver}, ())) == [f"notify_receivers.night: {said}"]


@pytest.mark.parametrize("name", ["webhook", "a b", ""])
def test_a_name_is_checked(name: str) -> None:
    (said,) = faults_of_receivers({name: email()}, ())
    assert "a name has at most 64 letters, digits, - and _, and is not webhook or command" in said


def test_receiver_name_must_differ_from_commands() -> None:
    (said,) = faults_of_receivers({"mail": email()}, {"mail"})
    assert said == "notify_receivers.mail: notify_commands has this name too; choose another one"


def test_number_of_receivers_is_limited() -> None:
    (said,) = faults_of_receivers({f"r{number}": email() for number in range(33)}, ())
    assert said == "notify_receivers: there are 33; name at most 32"


def test_topic_is_the_last_segment_of_its_address() -> None:
    assert topic_of("https://n.example/a/b") == ("https://n.example/a/", "b")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('kind = "slak"', "notify_receivers = .*Invalid enum value 'slak'"),
        ('kind = "slack"\npassword = "x"', "unknown field `password`"),
        ('kind = "slack"', "notify_receivers.chat: .* needs secret_file or secret_env"),
    ],
)
def test_unreadable_table_is_refused(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "steward.toml"
    file.write_text(f"[notify_receivers.chat]\n{line}\n")
    with pytest.raises(Invalid, match=said):
        load_settings(file, {}, {})


def test_unprivileged_daemon_still_reads_the_secrets(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/secret").symlink_to(elsewhere / "secret")
    one = of(ReceiverKind.SLACK, secret_file=str(tmp_path / "etc/secret"))
    found = set(readable(Settings(notify_receivers={"chat": one})))
    assert {str(tmp_path / "etc"), str(elsewhere)} <= found
