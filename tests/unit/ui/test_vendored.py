"""Vendored files of the UI match `packaging/vendor/packages.toml`."""

import hashlib
import tomllib
from pathlib import Path

from daemon.ui.render import HERE

ROOT = Path(__file__).parents[3]
EVERY = tomllib.loads((ROOT / "packaging/vendor/packages.toml").read_text())["package"]
PACKAGES = [item for item in EVERY if "to" not in item]  # the others are only for tests
OURS = {
    *("app.js", "log.js", "live.js", "terminal.js", "editor.js", "upload.js"),
    *("style.css", "icon.svg", "job-keys.json"),
}


def test_each_file_matches_the_registry() -> None:
    for package in PACKAGES:
        for name, wanted in package["files"].items():
            body = (HERE / "static" / name).read_bytes()
            assert hashlib.sha256(body).hexdigest() == wanted["sha256"], name


def test_each_package_has_its_licence() -> None:
    for package in PACKAGES:
        texts = [name for name in package["files"] if name.endswith(".txt")]
        assert len(texts) == 1
        assert "MIT" in package["licence"]
        assert "Permission is hereby granted" in (HERE / "static" / texts[0]).read_text()


def test_every_file_is_first_party_or_listed() -> None:
    theirs = {name for package in PACKAGES for name in package["files"]}
    assert {path.name for path in (HERE / "static").iterdir()} == OURS | theirs
