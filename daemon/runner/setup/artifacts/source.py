"""Parse the source of an artifact: `git::https://host/repo.git//folder?ref=v1`. No I/O.

The syntax is that of Nomad's download library. A prefix such as `git::` selects the fetch method,
and a double slash separates a subdirectory. The options of a source are in its query and in the
artifact block. If both set an option, the value in the block applies.
"""

from collections.abc import Mapping
from enum import Enum
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

# Options for Steward; all others are part of the address.
_OURS = frozenset(
    {"archive", "checksum", "filename", "ref", "depth", "sshkey", "element", "readonly"}
)
_FORGES = ("github.com/", "gitlab.com/", "bitbucket.org/")
_REPOSITORY_DEPTH = 3  # host, owner, repository

ARCHIVES = (
    "tar.gz",
    "tgz",
    "tar.bz2",
    "tbz2",
    "tar.xz",
    "txz",
    "tar",
    "zip",
    "gz",
    "bz2",
    "xz",
)
_SINGLE = frozenset({"gz", "bz2", "xz"})


class SourceType(Enum):
    """The fetch method of an artifact."""

    HTTP = "http"
    GIT = "git"
    FILE = "file"
    PAYLOAD = "payload"  # a file of the job's dispatch
    KEPT = "kept"  # a file that an earlier step of the workflow left


class ArtifactSource(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed source of an artifact: its address and its fetch method."""

    kind: SourceType
    url: str
    folder: str = ""  # the requested subdirectory of the download
    options: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        """Return the name of the downloaded file."""
        named = self.options.get("filename")
        return named or _path(self.url).rstrip("/").rpartition("/")[2] or "artifact"

    @property
    def archive(self) -> str:
        """Return the archive type; empty if the file is not to be unpacked."""
        format_name = self.options.get("archive")
        if format_name in {"false", "0"}:
            return ""
        if format_name:
            return format_name if format_name in ARCHIVES else ""
        path = _path(self.url)
        return next((extension for extension in ARCHIVES if path.endswith(f".{extension}")), "")


def _path(url: str) -> str:
    """Return the path of a URL; for `payload://NAME` it is the name."""
    parts = urlsplit(url)
    return parts.path or (parts.netloc if parts.scheme == SourceType.PAYLOAD.value else "")


class InvalidSource(ValueError):
    """A source that is invalid or not supported."""


def is_file_name(text: str) -> bool:
    """Return whether a string is a plain file name, which cannot leave its directory."""
    return text not in {"", ".", ".."} and "/" not in text and "\0" not in text


def is_single(archive: str) -> bool:
    """Return whether an archive type holds a single unnamed file."""
    return archive in _SINGLE


def parse(text: str, options: Mapping[str, str]) -> ArtifactSource:
    """Parse a source and the options of its block. Raises `InvalidSource`."""
    forced, mark, address = text.partition("::")
    if not mark:
        forced, address = "", text
    if not forced and address.startswith(_FORGES):
        forced, address = "git", _of_forge(address)
    if address.startswith("git@"):
        forced, address = "git", _of_ssh(address)
    if address.startswith("/"):
        address = f"file://{address}"
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise InvalidSource(f"{text!r} is not an address: {error}") from error
    kind = _kind(forced or parts.scheme, text)
    path, folder = _split(parts.path)
    query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    own_options = {name: value for name, value in query.items() if name in _OURS}
    if not is_file_name(own_options.get("filename", "file")):
        raise InvalidSource(
            f"filename {own_options['filename']!r} is not a plain file name: it must not be empty, "
            "'.' or '..', or contain '/'"
        )
    other_options = urlencode({name: value for name, value in query.items() if name not in _OURS})
    url = urlunsplit((parts.scheme, parts.netloc, path, other_options, ""))
    return ArtifactSource(kind=kind, url=url, folder=folder, options=own_options)


def _kind(name: str, text: str) -> SourceType:
    match name:
        case "http" | "https":
            return SourceType.HTTP
        case "git" | "ssh":
            return SourceType.GIT
        case "file":
            return SourceType.FILE
        case "payload":
            return SourceType.PAYLOAD
        case "kept":
            return SourceType.KEPT
    raise InvalidSource(
        f"{text!r}: the fetch method {name!r} is not supported: "
        "use http, https, git, file, payload or kept"
    )


def _of_forge(text: str) -> str:
    """Expand the short form of a repository on a forge (host/owner/name) to its address."""
    path, question, query = text.partition("?")
    pieces = path.split("/")
    repository = "/".join(pieces[:_REPOSITORY_DEPTH]).removesuffix(".git")
    inner = "/".join(pieces[_REPOSITORY_DEPTH:]).strip("/")
    folder = f"//{inner}" if inner else ""
    return f"https://{repository}.git{folder}{question}{query}"


def _of_ssh(text: str) -> str:
    """Return `git@host:path` as a URL."""
    host, colon, path = text.partition(":")
    if not colon:
        raise InvalidSource(f"{text!r} is not of the form git@host:path")
    return f"ssh://{host}/{path.lstrip('/')}"


def _split(path: str) -> tuple[str, str]:
    """Split a path at its double slash into path and subdirectory. Raises `InvalidSource`."""
    before, slashes, folder = path.partition("//")
    if not slashes:
        return path, ""
    if ".." in folder.split("/"):
        raise InvalidSource(f"folder {folder!r} points outside the artifact")
    return before, folder.strip("/")
