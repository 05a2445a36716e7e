"""Name servers for tasks on the bridge. Such tasks cannot reach the host's loopback addresses."""

from collections.abc import Iterable
from pathlib import Path

from storage.records import resolver
from storage.records.task import NetworkDNS

# The second file has the servers that systemd-resolved forwards to.
_FILES = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
_MOST = 64 * 1024  # bytes read from each file


def host_servers() -> NetworkDNS | None:
    """Return the host's name servers that tasks on the bridge can reach; None if there are none."""
    return reachable_servers(map(_text, _FILES))


def reachable_servers(files: Iterable[str]) -> NetworkDNS | None:
    """Return the DNS settings of the first file with an IPv4 server that is not on loopback."""
    for text in files:
        lines = [words for line in text.splitlines() if len(words := line.split()) > 1]
        addresses = [words[1] for words in lines if words[0] == "nameserver"]
        servers = [
            server for server in addresses if ":" not in server and not server.startswith("127.")
        ]
        if servers:
            searches = [words[1:] for words in lines if words[0] == "search"]
            options = [option for words in lines if words[0] == "options" for option in words[1:]]
            names = NetworkDNS(
                servers=servers, searches=searches[-1] if searches else [], options=options
            )
            return None if [*resolver.faults(names, filled=True)] else names
    return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")[:_MOST]
    except OSError:
        return ""
