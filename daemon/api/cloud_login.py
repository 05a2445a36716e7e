"""The login method for cloud identities: its configuration, its roles, and logins."""

import msgspec

from daemon.api import vault_reads
from daemon.api.auth_response import auth_block
from daemon.identity import method_config, roles
from daemon.identity.login import request_of
from daemon.identity.methods import LoginMethods
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage.errors import NotFound
from storage.queries import identity, mounts
from storage.records.identity import Mount
from storage.records.times import rfc3339


def _mount(call: RouteCall) -> Mount:
    """Return the mount of a call. Raises `NotFound` if the mount was disabled in the meantime."""
    mount = call.parts.store.read(lambda db: mounts.find(db, call.mount))
    if mount is None:
        raise NotFound("")
    return mount


async def _methods(call: RouteCall) -> LoginMethods:
    return await call.parts.door.methods()


# --- configuration


async def read_config(call: RouteCall) -> VaultBody:
    """Show the configuration, without its secret."""
    mount = _mount(call)
    config = call.parts.store.read(lambda db: method_config.read(db, mount))
    return VaultBody(data=method_config.config_response(config))


async def write_config(call: RouteCall) -> VaultBody:
    """Create or change the configuration."""
    warnings = await (await _methods(call)).configure(_mount(call), call.fields)
    return VaultBody(warnings=warnings)


async def remove_config(call: RouteCall) -> VaultBody:
    """Delete the configuration."""
    existed = config_exists(call)
    await (await _methods(call)).unconfigure(_mount(call))
    call.note_deletion("configuration of", _mount(call).path.rstrip("/"), existed=existed)
    return VaultBody()


def config_exists(call: RouteCall) -> bool:
    """Return whether a configuration exists."""
    mount = _mount(call)
    return call.parts.store.read(lambda db: identity.config(db, mount.accessor)) is not None


async def rotate_secret(call: RouteCall) -> VaultBody:
    """Rotate the client secret. The new secret is used only after a successful test."""
    await (await _methods(call)).rotations.begin(_mount(call))
    return VaultBody()


async def read_rotation(call: RouteCall) -> VaultBody:
    """Show the state of the client secret's rotation."""
    state = (await _methods(call)).rotations.state(_mount(call))
    times = {
        "rotated_at": state.rotated_at,
        "pending_since": state.pending_since,
        "pending_ends_at": state.pending_ends_at,
        "try_again_at": state.try_again_at,
    }
    return VaultBody(
        data={
            "current_key": state.current,
            "pending_key": state.pending,
            "cleaning_up": state.unclean,
            "problem": state.problem,
            **{name: rfc3339(time) if time else "" for name, time in times.items()},
        }
    )


# --- roles


async def list_roles(call: RouteCall) -> VaultBody:
    """List the names of all roles (source: Vault's recorded responses `role-lifecycle`).

    The parameters `after` and `limit` have no effect.
    """
    mount = _mount(call)
    return await vault_reads.keys(
        call, lambda db, span: identity.role_names(db, mount.accessor, span), lists_all=True
    )


async def read_role(call: RouteCall) -> VaultBody:
    """Show a role."""
    mount = _mount(call)
    role = call.parts.store.read(lambda db: roles.read(db, mount, call["name"]))
    return VaultBody(data=roles.role_response(role))


async def write_role(call: RouteCall) -> VaultBody:
    """Create or change a role."""
    warnings = await roles.write(call.parts.store, _mount(call), call["name"], call.fields)
    return VaultBody(warnings=warnings)


async def remove_role(call: RouteCall) -> VaultBody:
    """Delete a role."""
    existed = await roles.remove(call.parts.store, _mount(call), call["name"])
    call.note_deletion("role", call["name"], existed=existed)
    return VaultBody()


def role_exists(call: RouteCall) -> bool:
    """Return whether a role exists."""
    mount, name = _mount(call), call["name"].lower()
    return call.parts.store.read(lambda db: identity.role(db, mount.accessor, name)) is not None


# --- logins


async def login(call: RouteCall) -> VaultBody:
    """Verify a login and issue a token."""
    request = request_of(call.fields)
    done = await (await _methods(call)).login(_mount(call), request, call.address, call.client_key)
    return VaultBody(
        auth=auth_block(done.secret, done.token, done.identity_policies), warnings=done.warnings
    )


async def explain(call: RouteCall) -> VaultBody:
    """Explain the checks of a login, rule by rule, without issuing a token."""
    request = request_of(call.fields)
    examination = await (await _methods(call)).explain(_mount(call), request, call.address)
    rules = [msgspec.structs.asdict(verdict) for verdict in examination.verdicts]
    return VaultBody(data={"accepted": not examination.broken(), "rules": rules})
