"""Validation of a task's blocks, such as artifacts, templates, identities, secrets and actions."""

import re
from collections.abc import Iterator

from daemon.jobspec.rules.paths import escapes, is_below
from daemon.text.go_format import duration, quote, uint_error
from storage.records import places
from storage.records.task import (
    Action,
    Artifact,
    CSIPluginConfig,
    DispatchPayload,
    Hook,
    Identity,
    Lifecycle,
    Secret,
    SecretsConfig,
    Template,
)

DEFAULT_IDENTITY = "default"

_HOOKS = frozenset(Hook)
_GETTER_MODES = ("any", "file", "dir")
VARIABLE = re.compile(r"\$\{[a-zA-Z0-9_.\-]+\}")  # resolved when the task starts
_DIGEST_SIZES = {"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}  # bytes
_HEX = frozenset(b"0123456789abcdefABCDEF")
_PLUGIN_TYPES = frozenset({"node", "controller", "monolith"})

# Error messages show the patterns in this form, and the code compiles them.
_ACTION_NAME = re.compile(r"[^\x00\t\n\f\r ]{1,128}")
_IDENTITY_NAME = re.compile(r"[a-zA-Z0-9\-_]{1,128}")
_IDENTITY_PATTERN = "^[a-zA-Z0-9-_]{1,128}$"
_SECRET_NAME = re.compile(r"[a-zA-Z0-9_]{1,128}")
_SECRET_PATTERN = "^[a-zA-Z0-9_]{1,128}$"  # noqa: S105  # the pattern of its name


def lifecycle(block: Lifecycle) -> Iterator[str]:
    """Yield the errors of a task's lifecycle block."""
    if not block.hook:
        yield "Lifecycle validation failed: no lifecycle hook provided"
    elif block.hook not in _HOOKS:
        yield f"Lifecycle validation failed: invalid hook: {block.hook}"


def dispatch_payload(block: DispatchPayload) -> Iterator[str]:
    """Yield an error if the file for a dispatch payload is outside the allocation directory."""
    if escapes("task/local", block.file):
        yield "Dispatch Payload validation failed: destination escapes allocation directory"


def action(action: Action) -> Iterator[str]:
    """Yield the errors of an action."""
    if not action.command:
        yield "command cannot be empty"
    if not _ACTION_NAME.fullmatch(action.name):
        yield f"invalid name '{action.name}'"


# --- artifacts ---


def artifact(artifact: Artifact) -> Iterator[str]:
    """Yield the errors of an artifact."""
    if not artifact.getter_source:
        yield "source must be specified"
    if artifact.getter_mode and artifact.getter_mode not in _GETTER_MODES:
        mode, modes = quote(artifact.getter_mode), ", ".join(_GETTER_MODES)
        yield f"invalid artifact mode {mode}; must be one of: {modes}"
    if escapes("task", artifact.relative_dest):
        yield "destination escapes allocation directory"
    elif artifact.relative_dest and "${" not in artifact.relative_dest:
        is_file = artifact.getter_mode == "file"
        if not places.is_destination(artifact.relative_dest, is_file=is_file):
            yield places.refusal(artifact.relative_dest)
    name = (artifact.getter_options or {}).get("filename")
    if name is not None and (name in {"", ".", ".."} or "/" in name):
        yield f"invalid artifact filename {quote(name)}; must be a name without '/'"
    checksum = (artifact.getter_options or {}).get("checksum")
    if checksum is not None and not VARIABLE.search(checksum):
        yield from _checksum(checksum.strip())


def _checksum(text: str) -> Iterator[str]:
    kind, colon, value = text.partition(":")
    if not text:
        yield "checksum value cannot be empty"
    elif not colon or ":" in value:
        yield f'checksum must be given as "type:value"; got {quote(text)}'
    elif problem := _hex_problem(value):
        yield f"invalid checksum: {problem}"
    elif kind not in _DIGEST_SIZES:
        yield f"unsupported checksum type: {kind}"
    elif len(value) != 2 * _DIGEST_SIZES[kind]:
        yield f"invalid {kind} checksum: {value}"


def _hex_problem(text: str) -> str | None:
    for byte in text.encode():
        if byte not in _HEX:
            character = f" '{chr(byte)}'" if chr(byte).isprintable() else ""
            return f"encoding/hex: invalid byte: U+{byte:04X}{character}"
    return "encoding/hex: odd length hex string" if len(text) % 2 else None


# --- templates ---


def template(template: Template) -> Iterator[str]:
    """Yield the errors of a template."""
    if not template.source_path and not template.embedded_tmpl:
        yield "Must specify a source path or have an embedded template"
    if not template.dest_path:
        yield "Must specify a destination for the template"
    if escapes("task", template.dest_path):
        yield "destination escapes allocation directory"
    yield from _on_change(template)
    if template.splay < 0:
        yield "Must specify positive splay value"
    if template.perms and (problem := uint_error(template.perms, base=8, bits=12)):
        yield f"Failed to parse {quote(template.perms)} as octal: {problem}"
    least, most = (template.wait.min, template.wait.max) if template.wait else (None, None)
    if least is not None and most is not None and least > most:
        yield f"wait min {duration(least)} is greater than max {duration(most)}"


def _on_change(template: Template) -> Iterator[str]:
    match template.change_mode:
        case "noop" | "restart":
            return
        case "signal":
            if not template.change_signal:
                yield "Must specify signal value when change mode is signal"
            if template.envvars:
                yield "cannot use signals with env var templates"
        case "script":
            if template.change_script is None:
                yield "must specify change script configuration value when change mode is script"
            elif not template.change_script.command:
                yield "must specify script path value when change mode is script"
        case _:
            yield "Invalid change mode. Must be one of the following: noop, signal, script, restart"


# --- identities and secrets ---


def identity(identity: Identity) -> Iterator[str]:
    """Yield the errors of an identity of a task."""
    if not _IDENTITY_NAME.fullmatch(identity.name):
        yield f"invalid name {quote(identity.name)}. Must match regex {_IDENTITY_PATTERN}"
    for number, audience in enumerate(identity.audience or (), 1):
        if not audience:
            yield f"an empty string is an invalid audience ({number})"
    yield from _identity_change(identity)
    if identity.ttl > 0 and identity.name in ("", DEFAULT_IDENTITY):
        yield "ttl for default identity not yet supported"
    if identity.ttl < 0:
        yield "ttl must be >= 0"
    if identity.filepath and not identity.file:
        yield "file parameter must be true in order to specify filepath"


def _identity_change(identity: Identity) -> Iterator[str]:
    if identity.change_mode in ("", "noop", "restart"):
        if identity.change_signal:
            signal = quote(identity.change_signal)
            yield f'can only use change_signal={signal} with change_mode="signal"'
    elif identity.change_mode != "signal":
        yield (f"invalid change_mode: {identity.change_mode}, must be one of noop, restart, signal")
    elif not identity.change_signal:
        yield 'change_signal must be specified when using change_mode="signal"'


def secrets_config(block: SecretsConfig) -> Iterator[str]:
    """Yield the errors of a task's `vault` block."""
    if block.change_mode == "signal":
        if not block.change_signal:
            yield 'Signal must be specified when using change mode "signal"'
    elif block.change_mode not in ("noop", "restart"):
        yield (
            f"Unknown change mode {quote(block.change_mode)}, must be one of noop, restart, signal"
        )


def secret(secret: Secret) -> Iterator[str]:
    """Yield the errors of a secret of a task."""
    if not secret.name:
        yield "secret name cannot be empty"
    if not _SECRET_NAME.fullmatch(secret.name):
        yield f"secret name must match regex {_SECRET_PATTERN}"
    if not secret.provider:
        yield "secret provider cannot be empty"
    if not secret.path:
        yield "secret path cannot be empty"
    if secret.provider in ("nomad", "vault"):
        if secret.env:
            yield f"{secret.provider} provider cannot use the env block"
    elif secret.config:
        yield f"custom plugin provider {secret.provider} cannot use the config block"


def storage_plugin(block: CSIPluginConfig) -> Iterator[str]:
    """Yield the errors of a task that is a storage plugin."""
    if not block.id:
        yield "CSIPluginConfig must have a non-empty PluginID"
    if block.type not in _PLUGIN_TYPES:
        yield (
            "CSIPluginConfig PluginType must be one of 'node', 'controller', or 'monolith', "
            f'got: "{block.type}"'
        )
    if is_below(block.mount_dir, block.stage_publish_base_dir):
        yield (
            "CSIPluginConfig StagePublishBaseDir must not be a subdirectory of MountDir, got: "
            f'StagePublishBaseDir="{block.stage_publish_base_dir}" MountDir="{block.mount_dir}"'
        )
