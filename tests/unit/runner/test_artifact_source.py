"""Parsing of the source of an artifact."""

import pytest

from daemon.runner.setup.artifacts.source import InvalidSource, SourceType, parse


@pytest.mark.parametrize(
    ("text", "kind", "url", "folder"),
    [
        ("http://h/a.zip", SourceType.HTTP, "http://h/a.zip", ""),
        ("https://h/a.tgz//sub/x?y=1", SourceType.HTTP, "https://h/a.tgz?y=1", "sub/x"),
        ("https::https://h/a", SourceType.HTTP, "https://h/a", ""),
        ("git::https://h/r.git//d?ref=v1", SourceType.GIT, "https://h/r.git", "d"),
        ("git@h:o/r.git", SourceType.GIT, "ssh://git@h/o/r.git", ""),
        ("git::ssh://git@h:22/o/r", SourceType.GIT, "ssh://git@h:22/o/r", ""),
        ("github.com/o/r", SourceType.GIT, "https://github.com/o/r.git", ""),
        ("github.com/o/r/sub/x?ref=v2", SourceType.GIT, "https://github.com/o/r.git", "sub/x"),
        ("/srv/files/a.tar", SourceType.FILE, "file:///srv/files/a.tar", ""),
        ("file::/srv/a", SourceType.FILE, "file:///srv/a", ""),
    ],
)
def test_source_is_parsed(text: str, kind: SourceType, url: str, folder: str) -> None:
    source = parse(text, {})
    assert (source.kind, source.url, source.folder) == (kind, url, folder)


def test_options_of_the_block_are_merged_with_those_of_the_address() -> None:
    source = parse("https://h/a?x=1&checksum=md5:1", {"checksum": "sha256:2", "y": "2"})
    assert source.options == {"checksum": "sha256:2"}
    assert source.url == "https://h/a?x=1&y=2"


@pytest.mark.parametrize(
    ("text", "options", "archive"),
    [
        ("https://h/a.tar.gz", {}, "tar.gz"),
        ("https://h/a.zip?token=1", {}, "zip"),
        ("https://h/a.gz", {}, "gz"),
        ("https://h/a.bin", {}, ""),
        ("https://h/a.zip", {"archive": "false"}, ""),
        ("https://h/download", {"archive": "zip"}, "zip"),
    ],
)
def test_archive_format_is_recognized_by_its_name(
    text: str, options: dict[str, str], archive: str
) -> None:
    assert parse(text, options).archive == archive


@pytest.mark.parametrize(
    ("text", "options", "name"),
    [
        ("https://h/x/a.bin", {}, "a.bin"),
        ("https://h/x/a.bin", {"filename": "b"}, "b"),
        ("https://h/", {}, "artifact"),
    ],
)
def test_file_is_named_after_its_address_or_the_setting(
    text: str, options: dict[str, str], name: str
) -> None:
    assert parse(text, options).name == name


@pytest.mark.parametrize(
    "text",
    ["s3::https://h/b", "hg::https://h/r", "ftp://h/x", "nonsense", "git@h", "https://h/a//../x"],
)
def test_invalid_artifact_source_is_refused(text: str) -> None:
    with pytest.raises(InvalidSource):
        parse(text, {})


@pytest.mark.parametrize("source", ["https://h/b", "payload://data", "kept://step/b", "/srv/b"])
@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/x", "../../../x", "a\0b"])
def test_file_name_cannot_leave_its_folder(source: str, name: str) -> None:
    with pytest.raises(InvalidSource, match="is not a plain file name"):
        parse(source, {"filename": name})
    assert parse(source, {"filename": "..x"}).name == "..x"


def test_payload_source_is_the_name_of_a_file_of_the_job() -> None:
    found = parse("payload://data.tar.gz", {})
    assert (found.kind, found.name, found.archive) == (SourceType.PAYLOAD, "data.tar.gz", "tar.gz")
