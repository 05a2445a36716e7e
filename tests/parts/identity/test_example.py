"""The login methods that a development daemon creates for its small cloud."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from daemon.identity import devcloud
from daemon.identity.dev_setup import PATH, POLICY, ROLE, prepare
from daemon.identity.lazy_methods import LazyMethods
from storage.queries import identity, mounts, policies
from storage.store import Store
from tests.parts.identity.test_lazy_methods import Clock, door, tokens

__all__ = ["door", "tokens"]  # fixtures


class Killed(Exception):
    """An exception that replaces the end of the process."""


def killed_before(number: int) -> Callable[..., Any]:
    """Return a write function that fails before its write number `number`."""
    write, done = Store.write, []

    async def counted(store: Store, work: Any) -> Any:
        if len(done) == number:
            raise Killed
        done.append(work)
        return await write(store, work)

    return counted


@pytest.mark.parametrize("number", range(4))
async def test_interrupted_first_start_is_completed(
    store: Store, door: LazyMethods, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(lambda: str(uuid4()), "")
    methods = await door.methods()
    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", killed_before(number))
        with pytest.raises(Killed):
            await prepare(store, methods, Clock(), ids)
    await prepare(store, methods, Clock(), ids)
    mount = store.read(lambda db: mounts.find(db, PATH))
    assert mount is not None
    config = store.read(lambda db: identity.config(db, mount.accessor))
    assert config is not None
    assert config.tenant_id == devcloud.TENANT
    assert store.read(lambda db: identity.role(db, mount.accessor, ROLE)) is not None
    assert store.read(lambda db: policies.find(db, POLICY)) is not None
