"""The task, and the blocks that only a task has."""

from daemon.jobspec.decode.kinds import text
from daemon.jobspec.decode.shapes import (
    Child,
    Field,
    Form,
    Found,
    FreeForm,
    Shape,
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
from storage.records.base import SECOND

_DEFAULT_IDENTITY = ("", "default")


def _required_text(wire: str) -> Field:
    return Field(wire, text, "", is_required=True)


_ARTIFACT = Shape(
    {
        **optional_text(source="GetterSource", mode="GetterMode", destination="RelativeDest"),
        **optional_flag(insecure="GetterInsecure"),
        **plain_flag("chown"),
    },
    {"options": TextMap("GetterOptions"), "headers": TextMap("GetterHeaders")},
)


def _finish_change_script(found: Found) -> None:
    document = found.document
    document["Args"] = document["Args"] or []
    if document["Timeout"] is None:
        document["Timeout"] = 5 * SECOND


_CHANGE_SCRIPT = Shape(
    {
        **optional_text("command"),
        **text_list("args"),
        **optional_duration("timeout"),
        **plain_flag("fail_on_error", "run_on_first_render"),
    },
    finish=_finish_change_script,
)


def _finish_template(found: Found) -> None:
    document = found.document
    defaults = {"ChangeMode": "restart", "Perms": "0644", "Splay": 5 * SECOND}
    for name, value in defaults.items():
        if document[name] is None:
            document[name] = value


_TEMPLATE = Shape(
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
        "wait": Child("Wait", Shape(optional_duration("min", "max"))),
        "change_script": Child("ChangeScript", _CHANGE_SCRIPT),
    },
    finish=_finish_template,
)
_LIFECYCLE = Shape({"hook": _required_text("Hook"), **plain_flag("sidecar")})
_ACTION = Shape({"command": _required_text("Command"), **text_list("args")}, always={"Name": ""})
_SCHEDULE = Shape(blocks={"cron": Child("Cron", Shape(plain_text("start", "end", "timezone")))})
_PLUGIN = Shape(
    {
        **plain_text("id", "type", "mount_dir", "stage_publish_base_dir"),
        **plain_duration("health_timeout"),
    }
)


def _finish(found: Found) -> None:
    """Set the identity without a name apart from the others; leave out what is no plugin."""
    document = found.document
    identities = document["Identities"] or []
    default = [one for one in identities if one["Name"] in _DEFAULT_IDENTITY]
    document["Identity"] = default[-1] if default else None
    if identities:
        others = [one for one in identities if one["Name"] not in _DEFAULT_IDENTITY]
        document["Identities"] = others
    if document["CSIPluginConfig"] is None:
        del document["CSIPluginConfig"]


_TASK = Shape(
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
        "artifact": Child("Artifacts", _ARTIFACT, form=Form.MANY),
        "template": Child("Templates", _TEMPLATE, form=Form.MANY),
        "lifecycle": Child("Lifecycle", _LIFECYCLE),
        "action": Child("Actions", _ACTION, ("Name",), Form.MANY),
        "schedule": Child("Schedule", _SCHEDULE),
        "csi_plugin": Child("CSIPluginConfig", _PLUGIN),
        "dispatch_payload": Child("DispatchPayload", Shape(plain_text("file"))),
        "identity": Child("Identities", IDENTITY, form=Form.MANY),
        "restart": Child("RestartPolicy", RESTART),
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

TASK = {"task": Child("Tasks", _TASK, ("Name",), Form.MANY)}
