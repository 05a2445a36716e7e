"""What the source of an artifact means: `git::https://host/repo.git//folder?ref=v1`. Pure.

The form is that of the peer's fetching library: a kind may stand before two colons, a folder within
what is fetched behind two slashes, and options in the query, where also those of the block go.
"""

from collections.abc import Mapping
from enum import Enum
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

# Options that tell us what to do; all others are part of the address.
_OURS = frozenset({"archive", "checksum", "filename", "ref", "depth", "sshkey"})
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


class Kind(Enum):
    """How an artifact is fetched."""

    HTTP = "http"
    GIT = "git"
    FILE = "file"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where an artifact is, and how it is fetched."""

    kind: Kind
    url: str
    folder: str = ""  # of what is fetched, the part that is wanted
    options: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        """Return the name of the file that is fetched."""
        named = self.options.get("filename")
        return named or urlsplit(self.url).path.rstrip("/").rpartition("/")[2] or "artifact"

    @property
    def archive(self) -> str:
        """Return what kind of archive it is; empty when it is to stay as it is."""
        wanted = self.options.get("archive")
        if wanted in {"false", "0"}:
            return ""
        if wanted:
            return wanted if wanted in ARCHIVES else ""
        path = urlsplit(self.url).path
        return next((one for one in ARCHIVES if path.endswith(f".{one}")), "")


class BadSource(ValueError):
    """A source that means nothing, or nothing that is supported."""


def is_single(archive: str) -> bool:
    """Tell whether a kind of archive holds one file without a name."""
    return archive in _SINGLE


def parse(text: str, options: Mapping[str, str]) -> Source:
    """Return what a source means, with the options of its block. Raises `BadSource`."""
    forced, mark, rest = text.partition("::")
    if not mark:
        forced, rest = "", text
    if not forced and rest.startswith(_FORGES):
        forced, rest = "git", _of_forge(rest)
    if rest.startswith("git@"):
        forced, rest = "git", _of_ssh(rest)
    if rest.startswith("/"):
        rest = f"file://{rest}"
    try:
        parts = urlsplit(rest)
    except ValueError as error:
        raise BadSource(f"{text!r} is not an address: {error}") from error
    kind = _kind(forced or parts.scheme, text)
    path, folder = _split(parts.path)
    query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    ours = {name: value for name, value in query.items() if name in _OURS}
    others = urlencode({name: value for name, value in query.items() if name not in _OURS})
    url = urlunsplit((parts.scheme, parts.netloc, path, others, ""))
    return Source(kind=kind, url=url, folder=folder, options=ours)


def _kind(name: str, text: str) -> Kind:
    match name:
        case "http" | "https":
            return Kind.HTTP
        case "git" | "ssh":
            return Kind.GIT
        case "file":
            return Kind.FILE
    raise BadSource(f"{text!r}: artifacts come from http, https, git and file; not from {name!r}")


def _of_forge(text: str) -> str:
    """Return the address of a repository that is named as on the web: host, owner, name."""
    path, question, query = text.partition("?")
    pieces = path.split("/")
    repository = "/".join(pieces[:_REPOSITORY_DEPTH]).removesuffix(".git")
    inner = "/".join(pieces[_REPOSITORY_DEPTH:]).strip("/")
    folder = f"//{inner}" if inner else ""
    return f"https://{repository}.git{folder}{question}{query}"


def _of_ssh(text: str) -> str:
    """Return `git@host:path` as an address."""
    host, colon, path = text.partition(":")
    if not colon:
        raise BadSource(f"{text!r} is not of the form git@host:path")
    return f"ssh://{host}/{path.lstrip('/')}"


def _split(path: str) -> tuple[str, str]:
    """Return the path, and the folder behind its two slashes. Raises `BadSource`."""
    before, slashes, folder = path.partition("//")
    if not slashes:
        return path, ""
    if ".." in folder.split("/"):
        raise BadSource(f"folder {folder!r} leads out of the artifact")
    return before, folder.strip("/")
