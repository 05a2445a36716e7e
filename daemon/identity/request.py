"""What somebody says who logs in."""

import msgspec


class LoginRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody who logs in says about themselves."""

    role: str = ""
    jwt: str = ""
    subscription_id: str = ""
    resource_group_name: str = ""
    vm_name: str = ""
    vmss_name: str = ""
    resource_id: str = ""


FIELDS = tuple(field.name for field in msgspec.structs.fields(LoginRequest))
