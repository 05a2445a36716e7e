"""A login method, a role and a policy to begin with, for the small cloud of a development daemon."""

from collections.abc import Iterator

from daemon.acl import named
from daemon.clock import Clock
from daemon.fields import Fields
from daemon.identity import devcloud, mounts, roles
from daemon.identity.methods import Methods
from storage.queries import identity, policies
from storage.queries import mounts as stored_mounts
from storage.records.acl import Policy
from storage.store import Store
from storage.writer import Transaction

PATH = "cloudid/"
ROLE = "dev"
POLICY = "dev"
_RULES = """\
# Whoever has logged in with the role dev may run jobs in the namespace default.
namespace "default" {
  policy = "write"
}
"""


async def prepare(store: Store, methods: Methods, clock: Clock, ids: Iterator[str]) -> None:
    """Set up what a machine of the small cloud needs to log in; what is there already stays.

    The configuration comes last: where there is a mount without one, a start was cut short.
    """
    mount = store.read(lambda db: stored_mounts.find(db, PATH))
    if mount is None:
        mount = mounts.new_mount(PATH, Fields({"type": "cloudid"}), next(ids))
        await mounts.enable(store, mount)
    elif mount.accessor in store.read(identity.configured):
        return
    await roles.write(
        store,
        mount,
        ROLE,
        Fields(
            {
                "bound_service_principal_ids": [devcloud.PRINCIPAL],
                "bound_subscription_ids": [devcloud.SUBSCRIPTION],
                "token_policies": [POLICY],
                "token_ttl": "1h",
            }
        ),
    )
    now = clock.now()

    def write(tx: Transaction) -> None:
        if policies.find(tx, POLICY) is None:
            named.put(tx, named.check_policy(Policy(name=POLICY, rules=_RULES, modified_at=now)))

    await store.write(write)
    await methods.configure(
        mount, Fields({"tenant_id": devcloud.TENANT, "resource": devcloud.RESOURCE})
    )
