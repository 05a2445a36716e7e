"""Vault and Consul blocks, which a task inherits from its group and its job."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    DecodedBlock,
    FreeForm,
    TextMap,
    optional_flag,
    optional_text,
    plain_flag,
    plain_text,
    text_list,
)


def _finish_vault(decoded_block: DecodedBlock) -> None:
    document = decoded_block.document
    if document["Env"] is None:
        document["Env"] = True
    if document["ChangeMode"] is None:
        document["ChangeMode"] = "restart"


_VAULT = BlockSchema(
    {
        **text_list("policies"),
        **plain_text("role", "cluster"),
        **optional_text("namespace", "change_mode", "change_signal"),
        **optional_flag("env", "allow_token_expiration"),
        **plain_flag("disable_file"),
    },
    finish=_finish_vault,
)
_SECRET = BlockSchema(
    plain_text("provider", "path"),
    {"config": FreeForm("Config"), "env": TextMap("Env")},
    always={"Name": ""},
)

VAULT = {"vault": ChildBlock("SecretsConfig", _VAULT)}
SECRETS = {"secret": ChildBlock("Secrets", _SECRET, ("Name",), BlockForm.MANY)}
CONSUL = {
    "consul": ChildBlock("Consul", BlockSchema(plain_text("namespace", "cluster", "partition")))
}
