"""The request of a login."""

import msgspec


class LoginRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a login request."""

    role: str = ""
    jwt: str = ""
    subscription_id: str = ""
    resource_group_name: str = ""
    vm_name: str = ""
    vmss_name: str = ""
    resource_id: str = ""


FIELDS = tuple(field.name for field in msgspec.structs.fields(LoginRequest))
