"""The generated reference is complete."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from daemon.api.routes import ROUTES
from daemon.cli.core.command_tree import COMMANDS
from daemon.config.settings import FIELDS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "packaging/docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_has_all_commands_calls_settings_and_metrics(reference: ModuleType) -> None:
    pages = reference.pages()
    commands = pages["reference/commands.md"]
    for name, entry in COMMANDS.items():
        verbs = [name] if isinstance(entry, str) else [f"{name} {verb}" for verb in entry[1]]
        assert all(f"## steward {verb}" in commands for verb in verbs)
    assert "Example: `steward job run --logs --timeout 10m report.hcl`" in commands
    assert all(f" {route.path}`" in pages["reference/http.md"] for route in ROUTES)
    assert all(f"| `{name}` |" in pages["reference/settings.md"] for name in FIELDS)
    assert "| `port` | number from 0 to 65535 | `4646` |" in pages["reference/settings.md"]
    assert "| `nomad.nomad.job_summary.running` |" in pages["reference/metrics.md"]


def test_links_out_of_the_documentation_become_plain_text(reference: ModuleType) -> None:
    class File:
        src_uri = "status.md"

    class Page:
        file = File

    text = "[figures](../bench/README.md#waiting), [ui](ui.md)"
    assert reference.on_page_markdown(text, page=Page) == "figures, [ui](ui.md)"
