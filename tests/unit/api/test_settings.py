"""Settings as shown to callers with permission to read the agent."""

from pathlib import Path

import msgspec
import pytest

from daemon.api.cluster.settings import shown_value
from daemon.config.settings import FIELDS, Settings
from storage.records.notification import Receiver, ReceiverKind


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("port", 4646, "4646"),
        ("dev", True, "true"),
        ("acl", None, ""),
        ("data_dir", Path(), ""),
        ("data_dir", Path("/srv"), "/srv"),
        ("host_names", ["a", "b"], '["a","b"]'),
        ("host_names", [], ""),
        ("cloud_graph_url", "https://graph.example/v1", "https://graph.example/v1"),
        (
            "cloud_graph_url",
            "https://anna:hunter2@graph.example/v1?k=hunter2",
            "https://…@graph.example/v1?…",
        ),
        ("cloud_graph_url", "https://[hunter2", "…"),
        (
            "notify_commands",
            {"mail": ["/usr/bin/mail", "hunter2"]},
            '{"mail":["/usr/bin/mail","…"]}',
        ),
        (
            "notify_receivers",
            {"phone": Receiver(kind=ReceiverKind.NTFY, url="https://ntfy.sh/hunter2")},
            '{"phone":{"kind":"ntfy","url":"https://ntfy.sh/…","secret_file":"","secret_env":"",'
            '"server":"","tls":"starttls","ca_file":"","user":"","from":"","to":[],'
            '"group_seconds":10}}',
        ),
        ("notify_commands", {"mail": ["/usr/bin/mail"]}, '{"mail":["/usr/bin/mail"]}'),
    ],
)
def test_setting_is_shown_without_possible_secrets(name: str, value: object, shown: str) -> None:
    assert shown_value(name, value) == shown


def test_every_default_is_shown_in_its_input_form() -> None:
    for name, field in FIELDS.items():
        usual = getattr(Settings(), name)
        shown = shown_value(name, usual)
        if usual in (None, "", Path(), [], {}):
            assert shown == ""
            continue
        written = shown if isinstance(usual, str | int | Path) else msgspec.json.decode(shown)
        read = msgspec.convert(
            written, field.type, strict=False, dec_hook=lambda _, item: Path(item)
        )
        assert read == usual, name
