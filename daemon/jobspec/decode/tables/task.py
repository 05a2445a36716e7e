"""Tasks, and blocks that only tasks have."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    DecodedBlock,
    FieldSpec,
    FreeForm,
    TextMap,
    optional_duration,
    optional_flag,
    optional_integer,
    optional_text,
    plain_duration,
    plain_flag,
    plain_text,
    text_list,
)
from daemon.jobspec.decode.tables.identity import IDENTITY
from daemon.jobspec.decode.tables.placement import AFFINITY, CONSTRAINT
from daemon.jobspec.decode.tables.policies import RESTART
from daemon.jobspec.decode.tables.resources import LOGS, RESOURCES, VOLUME_MOUNTS
from daemon.jobspec.decode.tables.scaling import TASK_SCALING
from daemon.jobspec.decode.tables.secrets import CONSUL, SECRETS, VAULT
from daemon.jobspec.decode.tables.service import SERVICE
from daemon.jobspec.decode.types import text
from storage.records.base import SECOND

_DEFAULT_IDENTITY = ("", "default")


def _required_text(wire: str) -> FieldSpec:
    return FieldSpec(wire, text, "", is_required=True)


_ARTIFACT = BlockSchema(
    {
        **optional_text(source="GetterSource", mode="GetterMode", destination="RelativeDest"),
        **optional_flag(insecure="GetterInsecure"),
        **plain_flag("chown"),
    },
    {"options": TextMap("GetterOptions"), "headers": TextMap("GetterHeaders")},
)


def _finish_change_script(decoded_block: DecodedBlock) -> None:
    document = decoded_block.document
    document["Args"] = document["Args"] or []
    if document["Timeout"] is None:
        document["Timeout"] = 5 * SECOND


_CHANGE_SCRIPT = BlockSchema(
    {
        **optional_text("command"),
        **text_list("args"),
        **optional_duration("timeout"),
        **plain_flag("fail_on_error", "run_on_first_render"),
    },
    finish=_finish_change_script,
)


def _finish_template(decoded_block: DecodedBlock) -> None:
    document = decoded_block.document
    defaults = {"ChangeMode": "restart", "Perms": "0644", "Splay": 5 * SECOND}
    for name, value in defaults.items():
        if document[name] is None:
            document[name] = value


_TEMPLATE = BlockSchema(
    {
        **optional_text(source="SourcePath", destination="DestPath", data="EmbeddedTmpl"),
        **optional_text("change_mode", "change_signal", "perms"),
        **optional_text(left_delimiter="LeftDelim", right_delimiter="RightDelim"),
        **optional_flag("once", env="Envvars"),
        **plain_flag(error_on_missing_key="ErrMissingKey"),
        **optional_duration("splay", "vault_grace"),
        **optional_integer("uid", "gid"),
    },
    {
        "wait": ChildBlock("Wait", BlockSchema(optional_duration("min", "max"))),
        "change_script": ChildBlock("ChangeScript", _CHANGE_SCRIPT),
    },
    finish=_finish_template,
)
_LIFECYCLE = BlockSchema({"hook": _required_text("Hook"), **plain_flag("sidecar")})
_ACTION = BlockSchema(
    {"command": _required_text("Command"), **text_list("args")}, always={"Name": ""}
)
_SCHEDULE = BlockSchema(
    blocks={"cron": ChildBlock("Cron", BlockSchema(plain_text("start", "end", "timezone")))}
)
_PLUGIN = BlockSchema(
    {
        **plain_text("id", "type", "mount_dir", "stage_publish_base_dir"),
        **plain_duration("health_timeout"),
    }
)


def _finish(decoded_block: DecodedBlock) -> None:
    """Separate the default identity from named identities, and remove a null plugin block."""
    document = decoded_block.document
    identities = document["Identities"] or []
    default = [identity for identity in identities if identity["Name"] in _DEFAULT_IDENTITY]
    document["Identity"] = default[-1] if default else None
    if identities:
        extra_identities = [
            identity for identity in identities if identity["Name"] not in _DEFAULT_IDENTITY
        ]
        document["Identities"] = extra_identities
    if document["CSIPluginConfig"] is None:
        del document["CSIPluginConfig"]


_TASK = BlockSchema(
    {
        **plain_text("driver", "user", "kill_signal", "kind"),
        **plain_flag("leader"),
        **plain_duration("shutdown_delay"),
        **optional_duration("kill_timeout"),
    },
    {
        "config": FreeForm("Config"),
        "env": TextMap("Env", may_be_argument=True),
        "meta": TextMap("Meta", may_be_argument=True),
        "artifact": ChildBlock("Artifacts", _ARTIFACT, form=BlockForm.MANY),
        "template": ChildBlock("Templates", _TEMPLATE, form=BlockForm.MANY),
        "lifecycle": ChildBlock("Lifecycle", _LIFECYCLE),
        "action": ChildBlock("Actions", _ACTION, ("Name",), BlockForm.MANY),
        "schedule": ChildBlock("Schedule", _SCHEDULE),
        "csi_plugin": ChildBlock("CSIPluginConfig", _PLUGIN),
        "dispatch_payload": ChildBlock("DispatchPayload", BlockSchema(plain_text("file"))),
        "identity": ChildBlock("Identities", IDENTITY, form=BlockForm.MANY),
        "restart": ChildBlock("RestartPolicy", RESTART),
        **CONSTRAINT,
        **AFFINITY,
        **RESOURCES,
        **LOGS,
        **VOLUME_MOUNTS,
        **TASK_SCALING,
        **SERVICE,
        **VAULT,
        **CONSUL,
        **SECRETS,
    },
    always={"Name": ""},
    finish=_finish,
)

TASK = {"task": ChildBlock("Tasks", _TASK, ("Name",), BlockForm.MANY)}
