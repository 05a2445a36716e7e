"""Settings as people may see them who may look at a daemon."""

from pathlib import Path

import pytest

from daemon.api.cluster.settings import told
from daemon.config import FIELDS, Config


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
        ("notify_commands", {"mail": ["/usr/bin/mail"]}, '{"mail":["/usr/bin/mail"]}'),
    ],
)
def test_a_value_is_told_without_what_may_be_secret(name: str, value: object, shown: str) -> None:
    assert told(name, value) == shown


def test_every_default_can_be_told() -> None:
    for name in FIELDS:
        assert "hunter2" not in told(name, getattr(Config(), name))
