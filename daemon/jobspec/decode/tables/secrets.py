"""Secrets and service discovery: blocks that a task inherits from its group and its job."""

from daemon.jobspec.decode.shapes import (
    Child,
    Form,
    Found,
    FreeForm,
    Shape,
    TextMap,
    optional_flag,
    optional_text,
    plain_flag,
    plain_text,
    text_list,
)


def _finish_vault(found: Found) -> None:
    document = found.document
    if document["Env"] is None:
        document["Env"] = True
    if document["ChangeMode"] is None:
        document["ChangeMode"] = "restart"


_VAULT = Shape(
    {
        **text_list("policies"),
        **plain_text("role", "cluster"),
        **optional_text("namespace", "change_mode", "change_signal"),
        **optional_flag("env", "allow_token_expiration"),
        **plain_flag("disable_file"),
    },
    finish=_finish_vault,
)
_SECRET = Shape(
    plain_text("provider", "path"),
    {"config": FreeForm("Config"), "env": TextMap("Env")},
    always={"Name": ""},
)

VAULT = {"vault": Child("SecretsConfig", _VAULT)}
SECRETS = {"secret": Child("Secrets", _SECRET, ("Name",), Form.MANY)}
CONSUL = {"consul": Child("Consul", Shape(plain_text("namespace", "cluster", "partition")))}
