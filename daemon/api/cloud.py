"""The login method: its configuration, its roles, and logins."""

import msgspec

from daemon.api import shown
from daemon.api.granted import auth
from daemon.identity import method, roles
from daemon.identity.login import request_of
from daemon.identity.methods import Methods
from daemon.web.envelope import Answer
from daemon.web.request import Call
from storage.errors import NotFound
from storage.queries import identity, mounts
from storage.records.identity import Mount
from storage.records.times import rfc3339


def _mount(call: Call) -> Mount:
    """Return the mount of a call; it may have gone since it was found. Raises `NotFound`."""
    mount = call.parts.store.read(lambda db: mounts.find(db, call.mount))
    if mount is None:
        raise NotFound("")
    return mount


async def _methods(call: Call) -> Methods:
    return await call.parts.door.methods()


# ---- configuration


async def read_config(call: Call) -> Answer:
    """Show the configuration, without its secret."""
    mount = _mount(call)
    config = call.parts.store.read(lambda db: method.read(db, mount))
    return Answer(data=method.shown(config))


async def write_config(call: Call) -> Answer:
    """Create or change the configuration."""
    warnings = await (await _methods(call)).configure(_mount(call), call.fields)
    return Answer(warnings=warnings)


async def remove_config(call: Call) -> Answer:
    """Remove the configuration."""
    await (await _methods(call)).unconfigure(_mount(call))
    return Answer()


def config_exists(call: Call) -> bool:
    """Tell whether there is a configuration."""
    mount = _mount(call)
    return call.parts.store.read(lambda db: identity.config(db, mount.accessor)) is not None


async def rotate_secret(call: Call) -> Answer:
    """Have a new client secret made; it is put to use when it works."""
    await (await _methods(call)).rotations.begin(_mount(call))
    return Answer()


async def read_rotation(call: Call) -> Answer:
    """Show how far the rotation of the client secret is."""
    state = (await _methods(call)).rotations.state(_mount(call))
    times = {
        "rotated_at": state.rotated_at,
        "pending_since": state.pending_since,
        "pending_ends_at": state.pending_ends_at,
        "try_again_at": state.try_again_at,
    }
    return Answer(
        data={
            "current_key": state.current,
            "pending_key": state.pending,
            "cleaning_up": state.unclean,
            "problem": state.problem,
            **{name: rfc3339(time) if time else "" for name, time in times.items()},
        }
    )


# ---- roles


async def list_roles(call: Call) -> Answer:
    """List the names of the roles."""
    mount = _mount(call)
    return await shown.keys(call, lambda db: identity.role_names(db, mount.accessor))


async def read_role(call: Call) -> Answer:
    """Show a role."""
    mount = _mount(call)
    role = call.parts.store.read(lambda db: roles.read(db, mount, call["name"]))
    return Answer(data=roles.shown(role))


async def write_role(call: Call) -> Answer:
    """Create or change a role."""
    warnings = await roles.write(call.parts.store, _mount(call), call["name"], call.fields)
    return Answer(warnings=warnings)


async def remove_role(call: Call) -> Answer:
    """Remove a role."""
    await roles.remove(call.parts.store, _mount(call), call["name"])
    return Answer()


def role_exists(call: Call) -> bool:
    """Tell whether there is a role of that name."""
    mount, name = _mount(call), call["name"].lower()
    return call.parts.store.read(lambda db: identity.role(db, mount.accessor, name)) is not None


# ---- logins


async def login(call: Call) -> Answer:
    """Let somebody in who proves who they are."""
    request = request_of(call.fields)
    done = await (await _methods(call)).login(_mount(call), request, call.address)
    return Answer(
        auth=auth(done.secret, done.token, done.identity_policies), warnings=done.warnings
    )


async def explain(call: Call) -> Answer:
    """Say what a login would look at, rule by rule, and let nobody in."""
    request = request_of(call.fields)
    examination = await (await _methods(call)).explain(_mount(call), request, call.address)
    rules = [msgspec.structs.asdict(verdict) for verdict in examination.verdicts]
    return Answer(data={"accepted": not examination.broken(), "rules": rules})
