"""`operator debug`: diagnostics in one file, without secrets.

Job definitions and values of variables are left out. In the rest, values are removed if their name
or form suggests a secret. In texts, these parts are removed: the query and credentials of a URL,
VALUE in an assignment such as `password=VALUE`, tokens, private keys, and the details of template
errors.
"""

import io
import os
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from daemon.cli.core.http_client import ApiClient, RequestRejected
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.version import VERSION
from storage.errors import Invalid

_REMOVED = "(removed)"
_WRONG_OPTION = 400  # the status of the log for a wrong duration or level
_TELLING = (
    r"secret|token|passw|passphrase|pwd|credential|authorization|cookie"
    r"|(?:api|access|account|private|ssh|encryption)[-_]?key|connection[-_]?string"
)
_SECRET_NAMES = re.compile(_TELLING, re.IGNORECASE)
# Patterns of secrets in a text, with their replacements.
_TELLTALES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?<=://)[^/\s@]+@"), ""),
    (re.compile(r"""(://[^\s?"'<>]{0,2000})\?[^\s"'<>]*"""), rf"\1?{_REMOVED}"),
    (
        re.compile(rf"""(?i)((?:{_TELLING})[\w.-]{{0,99}}=)("[^"]*"|'[^']*'|[^\s,;&]+)"""),
        rf"\1{_REMOVED}",
    ),
    (re.compile(r"(?i)\b(bearer|basic) [\w.~+/=-]+"), rf"\1 {_REMOVED}"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), _REMOVED),
    (re.compile(r"\b(?:hv[sbr]\.[\w-]+|[sb]\.[A-Za-z0-9]{24,})"), _REMOVED),
    (
        re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)"),
        _REMOVED,
    ),
    (re.compile(r"(error calling \w+: )[^\n]*"), rf"\1{_REMOVED}"),
)
_FILE_MODE = 0o600
_LISTS = {"namespace": "*"}
# File in the bundle -> API path and parameters.
_QUESTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "agent.json": ("/v1/agent/self", {}),
    "health.json": ("/v1/agent/health", {}),
    "members.json": ("/v1/agent/members", {}),
    "nodes.json": ("/v1/nodes", {"resources": "true"}),
    "host-stats.json": ("/v1/client/stats", {}),
    "jobs.json": ("/v1/jobs", _LISTS),
    "evaluations.json": ("/v1/evaluations", _LISTS),
    "allocations.json": ("/v1/allocations", _LISTS),
    "deployments.json": ("/v1/deployments", _LISTS),
    "services.json": ("/v1/services", _LISTS),
    "namespaces.json": ("/v1/namespaces", {}),
    "scaling-policies.json": ("/v1/scaling/policies", _LISTS),
    "scheduler.json": ("/v1/operator/scheduler/configuration", {}),
    "autopilot.json": ("/v1/operator/autopilot/health", {}),
    "metrics.json": ("/v1/metrics", {}),
}


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Output file [default: steward-debug-TIME.tar.gz].",
)
@click.option("--duration", default="2s", show_default=True, help="How long to record the log.")
@click.option("--log-level", default="debug", show_default=True, help="Level of the recorded log.")
@with_output
@with_client
def debug(
    client: ApiClient, screen: Screen, *, output: Path | None, duration: str, log_level: str
) -> None:
    """Write diagnostics into one file, without secrets.

    For data that the token cannot read, the file contains the error message instead.

    Example: steward operator debug -duration 1h -output fault.tar.gz
    """
    stamp = time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
    target = output or Path(f"steward-debug-{stamp}.tar.gz")
    if output == Path("-"):
        raise Invalid(
            "-output -: diagnostics do not go to standard output; pass the name of a new file"
        )
    contents = list(_contents(client, duration, log_level))
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
            for name, content in contents:
                entry = tarfile.TarInfo(f"{target.name.removesuffix('.tar.gz')}/{name}")
                entry.size, entry.mode, entry.mtime = len(content), _FILE_MODE, int(time.time())
                bundle.addfile(entry, io.BytesIO(content))
    except FileExistsError:
        raise Invalid(f"{target} exists already: name another file with -output") from None
    except OSError as error:
        raise Invalid(f"cannot write {target}: {error.strerror}") from error
    screen.report(f"wrote {target}")


def _contents(client: ApiClient, duration: str, log_level: str) -> Iterator[tuple[str, bytes]]:
    yield "version.txt", f"{VERSION}\n".encode()
    for name, (path, query) in _QUESTIONS.items():
        yield name, _answer(client, path, query)
    query = {"log_level": log_level, "plain": "true", "duration": duration}
    yield "log.txt", _cleaned(_log(client, query)).encode()


def _answer(client: ApiClient, path: str, query: dict[str, str]) -> bytes:
    try:
        body = client.read(path, **query).body
    except RequestRejected as error:
        return msgspec.json.encode({"left out": str(error)})
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return msgspec.json.encode({"left out": f"the response is not JSON: {error}"})
    return msgspec.json.format(msgspec.json.encode(without_secrets(document)))


def _log(client: ApiClient, query: dict[str, str]) -> str:
    try:
        with client.stream("/v1/agent/monitor", **query) as chunks:
            return b"".join(chunks).decode(errors="replace")
    except RequestRejected as error:
        if error.status == _WRONG_OPTION:
            raise
        return f"left out: {error}\n"


def without_secrets(value: object, name: str = "") -> object:
    """Return a document without values whose name suggests a secret."""
    if isinstance(value, dict):
        return {key: without_secrets(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(inner, name) for inner in value]
    if not isinstance(value, str):
        return value
    if value and _SECRET_NAMES.search(name):
        return _REMOVED
    return _cleaned(value)


def _cleaned(text: str) -> str:
    for telltale, instead in _TELLTALES:
        text = telltale.sub(instead, text)
    return text
